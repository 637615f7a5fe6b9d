"""Kept sets, penalties and biases in the vocabulary head, against the whole formula through autograd."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ludus.algorithms.pack import LogitProcessing, PackedRow, TrainSequence, pack
from ludus.errors import InternalError, UserError
from ludus.kernels.build import build_library
from ludus.kernels.head import NativeSoftmax
from ludus.text.constraint import Constraints
from ludus.text.tokenizer import Tokenizer
from ludus.trainer.head import VocabularyHead
from ludus.trainer.processed_targets import ProcessedTargets
from ludus.trainer.softmax import TorchSoftmax

VOCAB = 33
CPU = torch.device("cpu")
PENALISED = LogitProcessing(3, presence_penalty=0.7, frequency_penalty=0.3, repetition_penalty=1.4)
BIASED = LogitProcessing(3, logit_bias=((4, 2.0), (9, -100.0), (30, 0.5)))
BOTH = LogitProcessing(4, frequency_penalty=-0.4, repetition_penalty=0.8, logit_bias=((7, 1.0), (8, -1.0)))
PROMPT = (5, 6, 5)
# Answers of one prompt: sequences that share it, part on their way, go on after a turn, and one of another root.
ANSWERS: tuple[tuple[tuple[int, ...], int, LogitProcessing | None, tuple[tuple[int, ...], ...]], ...] = (
    ((*PROMPT, 7, 8, 7, 7, 5), 3, PENALISED, ()),
    ((*PROMPT, 7, 8, 9, 10), 3, PENALISED, ((7,), (6, 8, 32), (), (0, 5, 8, 10))),
    ((*PROMPT, 7, 30, 4, 4), 3, BIASED, ()),
    ((*PROMPT, 11, 12), 3, None, ((0, 11), (12, 13, 14))),
    ((*PROMPT, 11, 12, 1, 8, 8, 2), 6, LogitProcessing(6, frequency_penalty=1.0), ((0, 8), (7, 8, 9), (2, 8))),
    ((6, 6, 3, 3, 6, 7, 0), 4, BOTH, ()),
    ((6, 6, 2, 2), 2, None, ()),
)


def packed_row() -> PackedRow:
    sequences = []
    for number, (token_ids, answer_from, logit_processing, kept_ids) in enumerate(ANSWERS):
        count = len(token_ids) - answer_from
        ones = (1.0,) * count
        sequences.append(
            TrainSequence(
                token_ids=token_ids,
                target_idx=tuple(range(answer_from, len(token_ids))),
                advantages=ones,
                weights=ones,
                logprobs=ones,
                versions=(0,) * count,
                temperatures=(0.6 + 0.2 * number,) * count,
                kept_ids=kept_ids,
                logit_processings=() if logit_processing is None else (logit_processing,) * count,
            )
        )
    (row,) = pack(sequences, row_tokens=64)
    return row


def slow_row(logits_V: Tensor, row: PackedRow, target: int, cap: float | None) -> Tensor:
    """The distribution of one target, written down as the engine's documentation says it."""
    path: list[int] = []
    at = row.source_idx[target]
    while at >= 0:
        path.insert(0, row.token_ids[at])
        at = row.parents[at]
    scores = logits_V if cap is None else cap * torch.tanh(logits_V / cap)
    logit_processing = row.logit_processings[target]
    if logit_processing is not None:
        penalty = torch.ones(VOCAB)
        penalty[path] = logit_processing.repetition_penalty
        scores = torch.where(scores > 0, scores / penalty, scores * penalty)
        counts = torch.zeros(VOCAB)
        for token, count in Counter(path[logit_processing.answer_from :]).items():
            counts[token] = count
        scores = scores - logit_processing.frequency_penalty * counts - logit_processing.presence_penalty * (counts > 0)
        biases = torch.zeros(VOCAB)
        for token, bias in logit_processing.logit_bias:
            biases[token] = bias
        scores = scores + biases
    scores = scores / row.temperatures[target]
    if row.kept_ids[target]:
        kept = torch.zeros(VOCAB, dtype=torch.bool)
        kept[list(row.kept_ids[target])] = True
        scores = scores.masked_fill(~kept, -torch.inf)
    return scores.log_softmax(-1)


def slow(hidden: Tensor, weight: Tensor, row: PackedRow, cap: float | None) -> tuple[Tensor, Tensor]:
    logits = hidden @ weight.t()
    logprobs, entropies = [], []
    for target, token in enumerate(row.target_ids):
        logs = slow_row(logits[target], row, target, cap)
        possible = logs[logs > -torch.inf]
        logprobs.append(logs[token])
        entropies.append(-(possible.exp() * possible).sum())
    return torch.stack(logprobs), torch.stack(entropies)


@pytest.mark.parametrize("softmax", ["native", "torch"])
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("logit_bytes", [1, 4 * VOCAB * 5, 1 << 20])
def test_values_and_gradients_are_those_of_the_formula(softmax: str, cap: float | None, logit_bytes: int) -> None:
    """Log-probabilities, entropies, both gradients; cut into chunks anywhere; beside targets of no shape."""
    row = packed_row()
    num_targets = len(row.target_ids)
    generator = torch.Generator().manual_seed(3)
    hidden = (torch.randn(num_targets, 8, generator=generator)).requires_grad_()
    weight = torch.randn(VOCAB, 8, generator=generator).requires_grad_()
    grad, by_entropy = torch.randn(2, num_targets, generator=generator)
    targets, temperatures = torch.tensor(row.target_ids), torch.tensor(row.temperatures)
    head = VocabularyHead(weight.detach(), softcap=cap, logit_bytes=logit_bytes)
    head._softmax = NativeSoftmax(build_library("head")) if softmax == "native" else TorchSoftmax()
    processed = ProcessedTargets.of(row, CPU)

    expected, expected_entropies = slow(hidden, weight, row, cap)
    logprobs, entropies = head(hidden.detach(), targets, temperatures, processed)
    torch.testing.assert_close(logprobs, expected.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies, expected_entropies.detach(), atol=1e-5, rtol=1e-5)

    sink = torch.zeros_like(weight)
    fast_grad = head.differentiate(
        hidden.detach(),
        targets,
        temperatures,
        lambda chunk, *_: (grad[chunk], by_entropy[chunk]),
        processed=processed,
        sink_VD=sink,
    )
    slow_grad, slow_weight_grad = torch.autograd.grad(
        (expected, expected_entropies), (hidden, weight), (grad, by_entropy)
    )
    torch.testing.assert_close(fast_grad, slow_grad, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(sink, slow_weight_grad, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("logit_bytes", [1, 1 << 20])
def test_grammars_are_walked_through_again(tokenizer_folder: Path, cap: float | None, logit_bytes: int) -> None:
    """What a grammar forbids has no share in value or gradient, chunk by chunk, also under penalties."""
    tokenizer = Tokenizer.load(tokenizer_folder)
    constraints = Constraints(tokenizer)
    prompt, answer = tokenizer.encode("Guess."), tokenizer.encode("seven wizards")
    count, ones = len(answer), (1.0,) * len(answer)
    logit_processing = LogitProcessing(len(prompt), repetition_penalty=1.3, grammar="start: /[a-z ]+/")
    sequence = TrainSequence(
        (*prompt, *answer), tuple(range(len(prompt), len(prompt) + count)),
        ones, ones, ones, (0,) * count, (0.7,) * count, logit_processings=(logit_processing,) * count,
    )  # fmt: skip
    (row,) = pack([sequence], row_tokens=64)
    generator = torch.Generator().manual_seed(5)
    vocab_size = tokenizer.vocab_size + 40  # a head may have more rows than the tokenizer has tokens
    hidden = torch.randn(count, 8, generator=generator).requires_grad_()
    weight = torch.randn(vocab_size, 8, generator=generator)
    grad = torch.randn(count, generator=generator)

    constraint = constraints.start("start: /[a-z ]+/")
    expected = []
    for at, token in enumerate(answer):
        allowed = torch.tensor([constraint.allows(idx) for idx in range(vocab_size)])
        scores = hidden[at] @ weight.t()
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        seen = list({*prompt, *answer[:at]})
        penalty = torch.ones(vocab_size).index_fill(0, torch.tensor(seen), 1.3)
        scores = torch.where(scores > 0, scores / penalty, scores * penalty) / 0.7
        expected.append(scores.masked_fill(~allowed, -torch.inf).log_softmax(-1)[token])
        constraint.advance(token)
    head = VocabularyHead(weight, softcap=cap, logit_bytes=logit_bytes)
    targets, temperatures = torch.tensor(row.target_ids), torch.tensor(row.temperatures)
    processed = ProcessedTargets.of(row, CPU, constraints)
    logprobs, _ = head(hidden.detach(), targets, temperatures, processed)
    torch.testing.assert_close(logprobs, torch.stack(expected).detach(), atol=1e-5, rtol=1e-5)
    fast_grad = head.differentiate(
        hidden.detach(), targets, temperatures, lambda chunk, *_: (grad[chunk], None), processed=processed
    )
    (slow_grad,) = torch.autograd.grad(torch.stack(expected), hidden, grad)
    torch.testing.assert_close(fast_grad, slow_grad, atol=2e-5, rtol=1e-5)


def test_a_grammar_needs_a_tokenizer_and_tokens_of_it(tokenizer_folder: Path) -> None:
    """Without a tokenizer nothing can be walked through; tokens that the grammar forbids are a broken record."""
    sequence = TrainSequence(
        (1, 50, 51), (1, 2), (1.0,) * 2, (1.0,) * 2, (0.0,) * 2, (0,) * 2, (1.0,) * 2,
        logit_processings=(LogitProcessing(1, grammar="start: <[60]> <[61]>"),) * 2,
    )  # fmt: skip
    (row,) = pack([sequence], row_tokens=8)
    with pytest.raises(UserError, match="no tokenizer to read"):
        ProcessedTargets.of(row, CPU).runs(slice(0, 2))
    constraints = Constraints(Tokenizer.load(tokenizer_folder))
    for targets in (slice(0, 2), slice(1, 2)):
        with pytest.raises(InternalError, match="cannot walk through a grammar"):
            ProcessedTargets.of(row, CPU, constraints).runs(targets)


def test_bf16_logits_are_shaped_in_fp32() -> None:
    """Penalties do not round the logits they change once more: all values are those of the bf16 logits."""
    row = packed_row()
    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(len(row.target_ids), 8, generator=generator).bfloat16()
    weight = torch.randn(VOCAB, 8, generator=generator).bfloat16()
    logits = (hidden @ weight.t()).float()
    head = VocabularyHead(weight, softcap=None)
    logprobs, _ = head(
        hidden, torch.tensor(row.target_ids), torch.tensor(row.temperatures), ProcessedTargets.of(row, CPU)
    )
    expected = [slow_row(logits[at], row, at, None)[token] for at, token in enumerate(row.target_ids)]
    torch.testing.assert_close(logprobs, torch.stack(expected), atol=1e-4, rtol=1e-5)


def test_rows_without_a_shape_have_none() -> None:
    """The model's own distribution takes no detour; what only fills up a row is plain."""
    sequence = TrainSequence((1, 2, 3), (1, 2), (1.0,) * 2, (1.0,) * 2, (0.0,) * 2, (0,) * 2, (1.0,) * 2)
    (row,) = pack([sequence], row_tokens=8)
    assert row.kept_ids == () == row.logit_processings and ProcessedTargets.of(row, CPU) is None
    processed = ProcessedTargets.of(packed_row(), CPU)
    num_targets = len(packed_row().target_ids)
    runs = processed.runs(slice(0, num_targets + 5))
    assert runs[-1] == (slice(num_targets, num_targets + 5), None)
    rows = [at for rows, _ in runs for at in range(rows.start, rows.stop)]
    assert rows == list(range(num_targets + 5))
    assert processed.runs(slice(num_targets, num_targets + 3)) == [(slice(0, 3), None)]
