"""Preference training from files: rows of chosen and rejected answers become the pairs of a preference loss.

Knows: rows in TRL's forms, chat text.  Knows not: engines, episodes, how a loss uses a pair.
Invariant: an answer is trained as a reply in supervised training is (`sft.py`); no token of a prompt is trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pydantic

from ludus.algorithms.pack import UNRELATED, Batch, TrainSequence, pack
from ludus.algorithms.resolve import algorithm_of
from ludus.algorithms.reward_loss import TokenPair
from ludus.algorithms.settings import AlgorithmSettings
from ludus.errors import ConfigError, UserError
from ludus.loop.sft import SftSettings, answer_sequences, in_batches
from ludus.text.chat import ChatText


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a prompt, and whether it is preferred."""

    sequences: tuple[TrainSequence, ...]
    """One for each assistant message in it; the last holds all tokens."""
    side: float
    """1: chosen, or desirable. -1: rejected, or undesirable. 0: only used to measure KTO's reference point."""
    margin: float = 0.0
    """For a reward model: by how much its reward should exceed that of the rejected answer."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and answer, up to the end of the assistant's last turn."""
        return self.sequences[-1].token_ids

    @property
    def num_targets(self) -> int:
        return sum(len(each.target_idx) for each in self.sequences)


def preference_batches(
    text: ChatText,
    rows: Sequence[Mapping[str, Any]],
    settings: SftSettings,
    *,
    algorithm: AlgorithmSettings,
    row_tokens: int,
    seed: int,
) -> Iterator[Batch]:
    """The batches of all steps, in order.

    rows: each with `chosen` and `rejected`, or for KTO with `completion` and `label`; see `read_answers`.
    algorithm: one whose loss learns from preferences.  row_tokens: of one micro-batch.  seed: of the order of the rows.
    Raises UserError, with the row's number, for a row that cannot be read; ConfigError for any other algorithm.
    """
    _check(algorithm)
    is_paired = algorithm_of(algorithm).needs.pairs
    for step, chosen in enumerate(in_batches(read_rows(text, rows, settings, is_paired=is_paired), settings, seed)):
        measured = () if is_paired else _mismatched([answer for answers in chosen for answer in answers])
        yield Batch.of(pack(_sequences([*chosen, measured], algorithm), row_tokens=row_tokens), version=step)


class RewardSettings(SftSettings):
    """How pairs become steps of a reward model."""

    center_rewards_coefficient: float | None = pydantic.Field(default=None, gt=0)
    """Weight of the squared sum of a pair's rewards, a term that keeps rewards around 0. None: no such term."""


def reward_batches(
    text: ChatText, rows: Sequence[Mapping[str, Any]], settings: RewardSettings, *, seed: int
) -> Iterator[list[TokenPair]]:
    """The pairs of all steps, in order.

    rows: each with `chosen` and `rejected` (see `read_answers`), and optionally a `margin`.
    """
    pairs = [
        TokenPair(chosen.token_ids, rejected.token_ids, chosen.margin)
        for chosen, rejected in read_rows(text, rows, settings)
    ]
    return in_batches(pairs, settings, seed)


def read_rows(
    text: ChatText, rows: Sequence[Mapping[str, Any]], settings: SftSettings, *, is_paired: bool = True
) -> list[tuple[Answer, ...]]:
    """The answers of each row; rows with an answer longer than `max_tokens` are left out. Raises UserError if none is
    left."""
    limit = settings.max_tokens
    read = [read_answers(row, text, at=f"row {n}", is_paired=is_paired) for n, row in enumerate(rows)]
    kept = [each for each in read if limit is None or all(len(answer.token_ids) <= limit for answer in each)]
    if not kept:
        raise UserError("nothing to train on: no row has answers within max_tokens")
    return kept


def read_answers(
    row: Mapping[str, Any], text: ChatText, *, at: str = "row", is_paired: bool = True
) -> tuple[Answer, ...]:
    """The two answers of a row, the chosen one first; of a row with a `label`, where pairs are not needed, its one.

    Answers are messages that follow a `prompt` of messages; without a prompt, whole conversations that begin alike; or
    text that follows a `prompt` of text. `tools` are those of the conversation.
    """
    if "label" in row and not is_paired:
        return (_answer(row, "completion", text, 1.0 if row["label"] else -1.0, at),)
    chosen, rejected = (_answer(row, name, text, side, at) for name, side in (("chosen", 1.0), ("rejected", -1.0)))
    return replace(chosen, margin=float(row.get("margin") or 0.0)), rejected


def _answer(row: Mapping[str, Any], name: str, text: ChatText, side: float, at: str) -> Answer:
    if name not in row:
        raise UserError(f"{at} has no {name!r}; its columns are {', '.join(map(repr, row)) or 'none'}")
    prompt, answer = row.get("prompt"), row[name]
    if isinstance(answer, str) and isinstance(prompt, str):
        return Answer((_plain(prompt, answer, text),), side)
    if isinstance(answer, str) or isinstance(prompt, str):
        raise UserError(f"{at}: 'prompt' and {name!r} must both be text, or both messages")
    messages = [*(_common(row, name) if prompt is None else prompt)]
    own = answer[len(messages) :] if prompt is None else answer
    return Answer(tuple(answer_sequences(row, messages, own, text, at=f"{at}: {name!r}")), side)


def _common(row: Mapping[str, Any], name: str) -> Sequence[Any]:
    """The messages that both answers begin with."""
    other = row.get({"chosen": "rejected", "rejected": "chosen"}.get(name, name), ())
    both = zip(row[name], other, strict=False)
    shared: Sequence[Any] = row[name][: next((at for at, (one, two) in enumerate(both) if one != two), 0)]
    return shared


def _plain(prompt: str, answer: str, text: ChatText) -> TrainSequence:
    """The sequence of a text prompt and a text answer, which ends with the end-of-text token."""
    prompt_ids = text.tokenizer.encode(prompt)
    answer_ids = text.tokenizer.encode(answer, after=prompt_ids[-1] if prompt_ids else None)
    end = text.tokenizer.encode(text.tokenizer.special_tokens.get("eos_token", ""))
    whole_ids = (*prompt_ids, *answer_ids, *end)
    return TrainSequence.plain(whole_ids, range(max(1, len(prompt_ids)), len(whole_ids)))


def _mismatched(answers: Sequence[Answer]) -> tuple[Answer, ...]:
    """Each prompt with the answer to the prompt before it: KTO measures its reference point on these."""
    made = []
    for here, before in zip(answers, [*answers[-1:], *answers[:-1]], strict=True) if len(answers) > 1 else ():
        prompt_ids = here.sequences[0].token_ids[: here.sequences[0].target_idx[0]]
        other = before.sequences[0]
        whole_ids = (*prompt_ids, *other.token_ids[other.target_idx[0] :])
        measured = TrainSequence.plain(whole_ids, range(len(prompt_ids), len(whole_ids)))
        made.append(Answer((replace(measured, origins=(UNRELATED,) * len(measured.target_idx)),), 0.0))
    return tuple(made)


def _sequences(groups: Sequence[tuple[Answer, ...]], algorithm: AlgorithmSettings) -> list[TrainSequence]:
    """The sequences of all answers, numbered by turn, answer and row; those that only measure have weight 0."""
    numbered = [(group, answer) for group, answers in enumerate(groups) for answer in answers]
    weights = algorithm_of(algorithm).weights([each.num_targets if each.side else 0 for _, each in numbered])
    made: list[TrainSequence] = []
    for number, ((group, answer), weight) in enumerate(zip(numbered, weights, strict=True)):
        for each in answer.sequences:
            n = len(each.target_idx)
            weighed = replace(each, advantages=(answer.side,) * n, weights=(weight,) * n)
            turns = (len(made),) * n
            made.append(replace(weighed, turns=turns, episodes=(number,) * n, groups=(group,) * n))
    return made


def _check(algorithm: AlgorithmSettings) -> None:
    needs = algorithm_of(algorithm).needs
    if not (needs.pairs or needs.sides):
        raise ConfigError(
            f"algorithm.loss={algorithm.loss.kind!r} does not learn from preferences; set algorithm.name to dpo, kto "
            "or orpo"
        )
    if algorithm.has_proximal:
        raise ConfigError("rows were sampled by nobody: there is nothing to correct; set algorithm.correction=bypass")
    is_weighted = algorithm.kl is not None and algorithm.kl.weighted
    of_sampler = {
        "kl.weighted": is_weighted,
        "second_moment": algorithm.second_moment,
        "off_policy_mask": algorithm.off_policy_mask,
    }
    for name in (name for name, value in of_sampler.items() if value):
        raise ConfigError(f"rows were sampled by nobody, and algorithm.{name} compares with who did; leave it out")
    of_episodes = ("reward_kl", "overlong", "dynamic_sampling", "mask_truncated_completions", "max_sequence_tokens")
    for name in (name for name in of_episodes if getattr(algorithm, name)):
        instead = "set max_tokens of the training instead" if name == "max_sequence_tokens" else "leave it out"
        raise ConfigError(f"algorithm.{name} is of episodes with rewards, and rows have none; {instead}")
    for name, instead in (
        ("minibatches", "batch_size rows at a time"),
        ("epochs", "as often as the training's epochs"),
    ):
        if (value := getattr(algorithm, name)) > 1:
            raise ConfigError(f"algorithm.{name}={value} is of rollouts; rows are taken {instead}")
