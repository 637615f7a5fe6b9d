"""The parity check plays real turns, and judges by fp32 alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ludus.algorithms.pack import Batch, pack
from ludus.api.local import open_local
from ludus.checks.verify.parity import check_config, export_all, verify_parity
from ludus.episodes.spec import SessionSpec
from ludus.processes.blocking import run_blocking
from ludus.types import ChatRequest, Message, Sampling, SessionRecord

REPEATING = "the sea the sea the sea"


def forget_kept_ids(record: SessionRecord) -> SessionRecord:
    """As if more had been allowed everywhere than a record holds: a vocabulary of 400 tokens never has so many."""
    turns = [
        replace(turn, sampled=replace(turn.sampled, kept_ids=(None,) * len(turn.sampled.token_ids)))
        for turn in record.turns
    ]
    return replace(record, turns=tuple(turns))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(top_p=0.8),
        Sampling(top_k=7, temperature=1.4),
        Sampling(min_p=0.1),
        Sampling(presence_penalty=1.2),
        Sampling(frequency_penalty=0.6, temperature=0.6),
        Sampling(repetition_penalty=1.3),
        Sampling(repetition_penalty=0.7, frequency_penalty=-0.3, top_p=0.7),
        Sampling(logit_bias=((3, 2.0), (50, -100.0), (120, 4.0))),
        Sampling(grammar="start: /(the|sea| ){4,20}/"),
        Sampling(grammar="start: /[a-z ]{4,30}/", repetition_penalty=1.5, temperature=0.8),
        Sampling(grammar="start: /[a-z ]{4,30}/", top_p=0.6, presence_penalty=0.9, logit_bias=((40, 2.0),)),
    ],
    ids=str,
)
@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_every_way_of_sampling_is_trained_as_it_was_sampled(
    sampling: Sampling, architecture: str, tiny_models: Callable[[str], Path]
) -> None:
    """Every token of an answer and of its continuation is trained, at the logprob it was sampled with."""
    config = check_config(str(tiny_models(architecture)), "fp32", seed=1)

    async def scenario() -> None:
        async with open_local(config) as local:
            asked = replace(sampling, seed=3, max_new_tokens=24)
            session = local.recorder.open(SessionSpec("s", sampling=asked))
            messages = (Message("user", REPEATING),)
            for _ in range(2):
                (turn,) = await session.complete(ChatRequest(messages, sampling=asked))
                messages = (*messages, turn.reply, Message("user", REPEATING))
            trainer, record = local.trainer(config), session.close("done")
            for kept in (record, forget_kept_ids(record)) if sampling.grammar and not sampling.truncates else (record,):
                sequences = export_all([kept])
                assert sum(len(sequence.target_idx) for sequence in sequences) == record.num_sampled_tokens
                seen = trainer.forward_backward(Batch.of(pack(sequences, row_tokens=1024), version=0))
                assert seen["train/logprob_gap_max"] <= 1e-4

    run_blocking(scenario())


def test_sampler_and_trainer_agree_in_fp32(tiny_model_folder: Path) -> None:
    """Logprobs of several conversations at once, each sampled in its own way, with shared prefixes and later turns,
    differ by rounding alone."""
    done: list[int] = []
    model = str(tiny_model_folder)
    result = verify_parity(tokens=300, model=model, seed=5, on_done=lambda num, _: done.append(num))
    assert result.ok and result.max_abs_diff <= 1e-4
    assert result.tokens == done[-1] >= 300 and result.masked == 0
    assert result.kept_tokens > 80 and result.shaped_tokens > 60
    assert result.turns > 8 and result.forks > 0
    assert result.cached_tokens > 0 and result.shared > 0.2
    assert not replace(result, max_abs_diff=2e-4).ok


def test_bf16_is_reported_not_judged(tiny_model_folder: Path) -> None:
    """In bf16 the difference is there to be read, and the check passes."""
    result = verify_parity(dtype="bf16", tokens=50, model=str(tiny_model_folder), seed=5)
    assert result.ok and result.tolerance is None and result.max_abs_diff > 0.0
