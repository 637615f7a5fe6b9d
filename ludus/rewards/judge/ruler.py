"""RULER: a judge compares the attempts of a group, and scores each from 0 to 1.

Knows: how a group is shown, in which order, how often, and how unusable answers are handled.
Knows not: HTTP, groups of trajectories, training.
Invariants: a score belongs to the attempt that the judge named; equal attempts have equal scores; with the same seed,
group and answers, the scores are the same.
Source: the idea of RULER is OpenPipe's (https://art.openpipe.ai/fundamentals/ruler).
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from ludus.errors import BackendError, UserError
from ludus.processes.gather import gather
from ludus.rewards.chat.base import ChatModel, Json, Usage
from ludus.rewards.chat.http import Price
from ludus.rewards.chat.resolve import resolve_chat_model
from ludus.rewards.judge.attempts import Attempt, Conversation, JudgePrompt, estimated_tokens, plain_message, render
from ludus.rewards.judge.cache import AnswerCache
from ludus.rewards.judge.prompt import DEFAULT_RUBRIC, SCORES, correction, instructions, schema_of
from ludus.rewards.judge.scores import ScoredAnswer, TrajectoryScore, UnusableError, read_scores
from ludus.rewards.judge.tournament import on_one_scale, split_into_heats, winner
from ludus.runs.spans import span

logger = logging.getLogger(__name__)

DEFAULT_JUDGE = "openai/o3"
LEAST_PROMPT_TOKENS = 500
"""With less, the instructions and two attempts do not fit even if the attempts are cut to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions:
    """How a group is judged, besides the judge and the rubric."""

    seed: int = 0
    """The order in which attempts are shown depends on this seed and on their content."""
    num_passes: int = 1
    """How often the group is judged, each time in another order; the scores are averaged."""
    max_tries: int = 3
    """How often a judge is asked before an unusable answer becomes an error."""
    max_prompt_tokens: int = 60_000
    """Longer groups are judged in heats, whose winners meet in a final. Tokens are estimated from bytes."""
    cache_dir: Path | str | None = None
    """Folder for usable answers, so that the same question is asked only once. None: no cache."""
    price: Price | None = None
    """None: the cost that the endpoint reports, if it does."""

    def __post_init__(self) -> None:
        for name, least in (("num_passes", 1), ("max_tries", 1), ("max_prompt_tokens", LEAST_PROMPT_TOKENS)):
            if getattr(self, name) < least:
                raise UserError(f"{name}={getattr(self, name)} must be at least {least}")


DEFAULT_OPTIONS = JudgeOptions()


@dataclass(frozen=True, slots=True)
class Judgement:
    """A judge's verdict on a group."""

    scores: tuple[TrajectoryScore, ...]
    """One score for each attempt, in order."""
    usage: Usage
    num_unusable: int = 0
    """Unusable answers, which had to be asked for again."""
    num_clamped: int = 0
    """Scores that were out of range even in the last answer."""
    num_rescaled: int = 0
    """Scores of answers that kept using a scale of 10 or 100."""
    spread: float = 0.0
    """Mean standard deviation of an attempt's score over the passes; 0 with one pass."""


async def ruler(
    message_lists: Sequence[Sequence[Mapping[str, Any]]],
    judge_model: str | ChatModel = DEFAULT_JUDGE,
    extra_litellm_params: Mapping[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    debug: bool = False,
    options: JudgeOptions = DEFAULT_OPTIONS,
) -> list[TrajectoryScore]:
    """A score for each list of messages, in order, from a judge that compares them.

    judge_model: `provider/model`, or a `ChatModel`.  extra_litellm_params: `api_base`, `api_key`, `timeout`,
    `num_retries`, and further fields of each request.  tools: the agents' tools.
    debug: log questions and answers as warnings.
    Raises BackendError if the judge gives no usable answer, UserError if its name, key or address is wrong.
    """
    attempts = [attempt_of(messages, tools) for messages in message_lists]
    judgement = await judge_attempts(
        attempts, judge_model, extra_litellm_params, rubric=rubric, debug=debug, options=options
    )
    return list(judgement.scores)


def attempt_of(messages: Iterable[Mapping[str, Any]], tools: Iterable[Mapping[str, Any]] | None = None) -> Attempt:
    """An attempt with one conversation. Raises UserError if a message is none."""
    return Attempt((conversation_of(messages, tools),))


def conversation_of(
    messages: Iterable[Mapping[str, Any]], tools: Iterable[Mapping[str, Any]] | None = None
) -> Conversation:
    """A conversation of messages as clients send them. Raises UserError if one is none."""
    plain = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or "role" not in message:
            raise UserError(f"message {index} must be a mapping with a role, but is {message!r:.100}")
        plain.append(plain_message(message))
    return Conversation(tuple(plain), tuple(tools or ()))


async def judge_attempts(
    attempts: Sequence[Attempt],
    judge_model: str | ChatModel = DEFAULT_JUDGE,
    parameters: Mapping[str, Any] | None = None,
    *,
    rubric: str = DEFAULT_RUBRIC,
    debug: bool = False,
    options: JudgeOptions = DEFAULT_OPTIONS,
) -> Judgement:
    """What the judge makes of `attempts`; arguments and errors as `ruler`."""
    if not attempts:
        return Judgement((), Usage())
    if isinstance(judge_model, str):
        model = resolve_chat_model(judge_model, parameters, price=options.price)
    elif parameters:
        raise UserError("extra_litellm_params belong to a judge that is named; this one was made already")
    else:
        model = judge_model
    try:
        with span("reward", "ruler", inputs={"judge": dict(model.identity), "attempts": len(attempts)}) as timed:
            judgement = await _Panel(model, rubric, options, debug).judge(attempts)
            timed.outputs = [score.model_dump() for score in judgement.scores]
            return judgement
    finally:
        if isinstance(judge_model, str):
            await model.aclose()


@dataclass
class _Panel:
    """One group before its judge; adds up what that takes."""

    model: ChatModel
    rubric: str
    options: JudgeOptions
    debug: bool
    usage: Usage = field(default_factory=Usage)
    num_unusable: int = 0
    num_clamped: int = 0
    num_rescaled: int = 0
    ids: tuple[str, ...] = ()

    async def judge(self, attempts: Sequence[Attempt]) -> Judgement:
        distinct = list(dict.fromkeys(map(_digest, attempts)))
        positions = [distinct.index(_digest(attempt)) for attempt in attempts]
        shown = [attempts[positions.index(i)] for i in range(len(distinct))]
        if len(shown) == 1 < len(attempts):
            logger.warning("all %d trajectories are the same, and are scored as one alone", len(attempts))
        self.ids = tuple(str(positions.index(i) + 1) for i in range(len(distinct)))
        told = estimated_tokens(instructions(self.rubric))
        room = max(LEAST_PROMPT_TOKENS, self.options.max_prompt_tokens - told)
        judge_prompt = render(shown, max_tokens=room)
        passes = await gather(
            lambda number: self._compare(judge_prompt, self._order(number, distinct), room),
            range(self.options.num_passes),
        )
        means = [fmean(each[i].score for each in passes) for i in range(len(shown))]
        scores = tuple(
            TrajectoryScore(trajectory_id=str(k + 1), explanation=passes[0][i].explanation, score=means[i])
            for k, i in enumerate(positions)
        )
        spread = fmean(pstdev(each[i].score for each in passes) for i in positions)
        return Judgement(scores, self.usage, self.num_unusable, self.num_clamped, self.num_rescaled, spread)

    def _order(self, number: int, digests: Sequence[str]) -> list[int]:
        # By what the attempts say, too: otherwise member 3 of every group would stand at the same position.
        drawn = random.Random(f"{self.options.seed}/{number}/{'/'.join(digests)}")
        order = list(range(len(digests)))
        drawn.shuffle(order)
        return order

    async def _compare(self, judge_prompt: JudgePrompt, order: list[int], room: int) -> dict[int, TrajectoryScore]:
        """Opinions of all in `order`, by index; in heats where they are too many for one prompt."""
        context = judge_prompt.tokens_of(())
        heats = split_into_heats([judge_prompt.tokens_of((i,)) - context for i in order], room - context)
        if len(heats) == 1:
            return await self._ask(judge_prompt, order)
        played = await gather(lambda heat: self._heat(judge_prompt, [order[position] for position in heat]), heats)
        best = [winner(_scores(attempt_scores)) for attempt_scores in played]
        final = await self._compare(judge_prompt, best, room)
        scores = on_one_scale([_scores(heat) for heat in played], _scores(final))
        return {i: one.model_copy(update={"score": scores[i]}) for heat in played for i, one in heat.items()}

    async def _heat(self, judge_prompt: JudgePrompt, heat: list[int]) -> dict[int, TrajectoryScore]:
        if len(heat) == 1:  # nobody to compare it with: it is in the final as it is, and its score is the final's
            alone = {"trajectory_id": self.ids[heat[0]], "explanation": "alone in its heat"}
            return {heat[0]: TrajectoryScore(**alone, score=1.0)}
        return await self._ask(judge_prompt, heat)

    async def _ask(self, judge_prompt: JudgePrompt, shown: list[int]) -> dict[int, TrajectoryScore]:
        """One prompt, and what the judge says of those it shows."""
        ids = [self.ids[i] for i in shown]
        messages: list[Json] = [
            {"role": "system", "content": instructions(self.rubric)},
            {"role": "user", "content": judge_prompt.text_of(shown, self.ids)},
        ]
        verdict = await self._usable(messages, ids)
        self.num_clamped += verdict.num_clamped
        if verdict.num_clamped:
            logger.warning(
                "the judge %r scored %d trajectories out of range; they are at its end now",
                self.model,
                verdict.num_clamped,
            )
        if verdict.top != 1.0:
            self.num_rescaled += len(shown)
            logger.warning(
                "the judge %r kept to scores from 0 to %g: they are divided by it. Its rubric should ask for 0 to 1",
                self.model,
                verdict.top,
            )
        return {i: verdict.attempt_scores[self.ids[i]] for i in shown}

    async def _usable(self, messages: list[Json], ids: Sequence[str]) -> ScoredAnswer:
        cache = None if self.options.cache_dir is None else AnswerCache(self.options.cache_dir)
        schema = schema_of(ids)
        key = cache.key(self.model.identity, messages, schema) if cache is not None else ""
        kept = cache.get(key) if cache is not None else None
        if kept is not None:
            with suppress(UnusableError):  # tampered with, or written by another version: as if it were not there
                verdict = read_scores(kept, ids, is_last=True)
                self.usage += Usage(num_cached=1)
                return verdict
        for number in range(1, self.options.max_tries + 1):
            answer = await self.model.ask(messages, name=SCORES, schema=schema)
            self.usage += answer.usage
            level = logging.WARNING if self.debug else logging.DEBUG
            question = messages[-1]["content"]
            logger.log(level, "judge.asked %s\n%s\njudge.answered %s", self.model, question, answer.text)
            try:
                verdict = read_scores(answer.text, ids, is_last=number == self.options.max_tries)
            except UnusableError as complaint:
                said = f"{complaint}{', and it was cut off at its limit of length' if answer.is_cut else ''}"
                self.num_unusable += 1
                messages = [
                    *messages[:2],
                    {"role": "assistant", "content": answer.text},
                    {"role": "user", "content": correction(said)},
                ]
            else:
                if cache is not None:
                    cache.put(key, answer.text)
                return verdict
        raise BackendError(
            f"the judge {self.model!r} gave {self.options.max_tries} answers that cannot be used; of the last: {said}. "
            f"It began with: {answer.text[:200]!r}"
        )


def _scores(attempt_scores: Mapping[int, TrajectoryScore]) -> dict[int, float]:
    return {i: attempt_score.score for i, attempt_score in attempt_scores.items()}


def _digest(attempt: Attempt) -> str:
    parts = [[list(part.messages), list(part.tools)] for part in attempt.conversations]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
