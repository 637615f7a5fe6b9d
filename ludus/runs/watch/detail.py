"""The data of the page for one episode, and for the tokens of one turn. Pure.

Knows: the records of `ludus.types`, what a step made of tokens, a function that turns ids into text.
Knows not: files, HTTP.
Invariant: values that were not recorded are null, never 0; tokens are in the order in which the model saw and sampled
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.algorithms.returns import turn_returns
from ludus.runs.codec import plain
from ludus.runs.forks import fork_between
from ludus.runs.tokens import StepTokens
from ludus.runs.view import Decode, new_messages, token_pieces
from ludus.runs.watch.index import MAIN
from ludus.types import Episode, Message, Turn

_BEFORE = 8
"""Tokens before a page of tokens that are decoded with it, so that its first characters are complete."""


@dataclass(frozen=True, slots=True)
class TurnUse:
    """How training used a turn."""

    step: int
    advantage: float | None
    mask: str | None
    """Exactly one of `advantage` and `mask` is None."""


def episode_detail(
    episode: Episode, *, uses: Mapping[str, TurnUse], decode: Decode | None, turn_discount: float
) -> dict[str, Any]:
    """Turns and spans of the episode. uses: by turn id, only of turns that were used in a step."""
    by_id = {turn.id: turn for turn in episode.session.turns}
    returns = _returns(episode, turn_discount)
    ends = episode.session.path_lengths()
    turns = []
    for number, turn in enumerate(episode.session.turns, start=1):
        use, sampled = uses.get(turn.id), turn.sampled
        is_known = episode.session.knows_tokens(turn)
        follows = by_id.get(turn.follows or "")
        turns.append(
            {
                "id": turn.id,
                "number": number,
                "agent": turn.agent or MAIN,
                "prefix": turn.prefix,
                "follows": turn.follows,
                "fork": None if turn.fork is None else _fork(episode, turn, decode),
                "started_at": turn.started_at or None,
                "first_token_at": turn.first_token_at or None,
                "ended_at": turn.finished_at or None,
                **_times(turn),
                "reward": episode.rewards.get(turn.id),
                "return": returns.get(turn.id),
                "advantage": None if use is None else use.advantage,
                "mask": "evaluation" if episode.is_eval else None if use is None else use.mask,
                "version_min": min(sampled.versions, default=None),
                "version_max": max(sampled.versions, default=None),
                "num_prompt_tokens": ends[turn.node] - len(sampled.token_ids) if is_known else None,
                "num_sampled_tokens": len(sampled.token_ids) if is_known else None,
                "num_cached_tokens": sampled.num_cached_tokens,
                "stop": turn.abort_cause or sampled.stop_reason,
                "temperature": turn.sampling.temperature,
                "messages": [message_json(each) for each in new_messages(turn, follows)],
                "reply": message_json(turn.reply),
                "tools": [tool.name for tool in turn.tools],
            }
        )
    return {
        "metrics": {name: _finite(value) for name, value in episode.metrics.items()},
        "metadata": plain(episode.metadata),
        "turns": turns,
        "spans": sorted(_spans(episode), key=lambda each: each["start_s"]),
    }


def turn_tokens(
    episode: Episode,
    turn: Turn,
    *,
    use: TurnUse | None,
    step: StepTokens | None,
    decode: Decode | None,
    offset: int,
    limit: int,
) -> dict[str, Any]:
    """A page of the turn's tokens, those of the prompt first; none if a model served elsewhere answered.

    step: the trained tokens of the step that used the turn. None: not known.
    """
    path = episode.session.path_ids(turn.node) if episode.session.knows_tokens(turn) else ()
    num_prompt = len(path) - len(turn.sampled.token_ids)
    page = range(min(offset, len(path)), min(offset + limit, len(path)))
    texts = _texts(path, page, decode)
    is_trained = step is not None and step.trains(turn.id)
    places = range(max(0, page.start - num_prompt), max(0, page.stop - num_prompt))
    trained = {} if step is None else step.of_turn(turn.id, places)
    mask = "evaluation" if episode.is_eval else None if use is None else use.mask
    left_out = frozenset(episode.left_out.get(turn.id, ()))
    tokens: list[dict[str, Any]] = []
    for i in page:
        token: dict[str, Any] = {"i": i, "id": path[i], "text": texts[i - page.start]}
        place = i - num_prompt
        if place < 0:
            tokens.append({**token, "kind": "prompt"})
            continue
        numbers, kept = trained.get(place), _kept(turn, place)
        why = mask
        if why is None and is_trained and numbers is None:
            why = "left_out" if place in left_out else "kept_set" if kept is _UNKNOWN else "stale or too long"
        tokens.append(
            {
                **token,
                "kind": "sampled",
                "logprob": _finite(turn.sampled.logprobs[place]),
                **_numbers(numbers, use if why is None else None),
                "mask": why,
                "version": turn.sampled.versions[place],
                "kept": None if kept is _UNKNOWN else kept,
            }
        )
    return {"total": len(path), "prompt_total": num_prompt, "tokens": tokens, "alternatives": None}


def alternatives(turn: Turn, place: int, decode: Decode | None) -> dict[str, Any]:
    """The recorded alternatives of one sampled token. place: its index among the turn's sampled tokens."""
    recorded = turn.sampled.top_logprobs
    if not recorded or not recorded[place]:
        return {"unavailable": "nothing else was recorded of this token: its agent did not ask for top_logprobs"}
    return {
        "alternatives": [
            {"id": token, "text": str(token) if decode is None else decode([token]), "logprob": _finite(logprob)}
            for token, logprob in recorded[place]
        ]
    }


def message_json(message: Message) -> dict[str, Any]:
    return {
        "role": message.role,
        "content": message.content,
        "reasoning": message.reasoning,
        "tool_calls": [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls],
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }


_UNKNOWN = -1
"""Stands for the number of ids that a token was sampled from, if the engine did not say, or they were too many to
record."""


def _kept(turn: Turn, place: int) -> int | None:
    """The number of ids that the token was sampled from. None: the whole vocabulary."""
    kept_ids = turn.sampled.kept_ids
    if not kept_ids:
        return None
    kept = kept_ids[place]
    return _UNKNOWN if kept is None else len(kept) or None


def _numbers(numbers: Mapping[str, float] | None, use: TurnUse | None) -> dict[str, Any]:
    """The values of a trained token that its loss used."""
    names = ("trained_logprob", "ratio", "advantage", "weight", "loss", "entropy")
    if numbers is None:
        known = None if use is None else use.advantage
        return {**dict.fromkeys(names), "clipped": None, "advantage": known}
    more = {name: _finite(value) for name, value in numbers.items() if name not in (*names, "clipped")}
    clipped = None if "clipped" not in numbers else bool(numbers["clipped"])
    return {**{name: _finite(numbers[name]) for name in names if name in numbers}, "clipped": clipped, **more}


def _texts(path: Sequence[int], page: range, decode: Decode | None) -> list[str]:
    if decode is None:
        return [f"{path[i]} " for i in page]
    start = max(0, page.start - _BEFORE)
    return token_pieces(path[start : page.stop], decode)[page.start - start :]


def _times(turn: Turn) -> dict[str, float | None]:
    """Split the time before the first token into waiting and prefill, of which only the engine knows the duration."""
    first, prefill_s = turn.first_token_at, turn.sampled.prefill_s
    until_s = first - turn.started_at if first and turn.started_at else None
    if until_s is not None and prefill_s is not None:
        prefill_s = min(prefill_s, max(0.0, until_s))  # a recalled answer has the original's prefill_s, but took none
    return {
        "until_first_s": until_s,
        "wait_s": None if until_s is None or prefill_s is None else until_s - prefill_s,
        "prefill_s": None if until_s is None else prefill_s,
        "decode_s": turn.finished_at - first if first and turn.finished_at else None,
    }


def _fork(episode: Episode, turn: Turn, decode: Decode | None) -> dict[str, Any]:
    found = None if decode is None else fork_between(episode.session, turn, decode)
    return {"reason": turn.fork, "detail": None if found is None else f"seen: {found[0]!r}; then shown: {found[1]!r}"}


def _returns(episode: Episode, turn_discount: float) -> Mapping[str, float | None]:
    if episode.has_returns:
        return episode.rewards
    follows = {turn.id: turn.follows for turn in episode.session.turns}
    known = {turn: reward for turn, reward in episode.rewards.items() if turn in follows and math.isfinite(reward)}
    return turn_returns(follows, known, turn_discount=turn_discount)


def _spans(episode: Episode) -> Iterator[dict[str, Any]]:
    start = episode.started_at or min((turn.started_at for turn in episode.session.turns), default=0.0)
    for number, turn in enumerate(episode.session.turns, start=1):
        if turn.started_at and turn.finished_at:
            about = {"turn": turn.id, "label": f"turn {number}, {turn.agent or MAIN}"}
            begun, first, ended = (at - start for at in (turn.started_at, turn.first_token_at, turn.finished_at))
            wait_s = _times(turn)["wait_s"]
            if turn.first_token_at:
                if wait_s is None:
                    yield {"kind": "first_token", **about, "start_s": begun, "end_s": first}
                else:
                    yield {"kind": "queue", **about, "start_s": begun, "end_s": begun + wait_s}
                    yield {"kind": "prefill", **about, "start_s": begun + wait_s, "end_s": first}
                yield {"kind": "decode", **about, "start_s": first, "end_s": ended}
            else:
                yield {"kind": "model", **about, "start_s": begun, "end_s": ended}
    for span in episode.spans:
        yield {
            "kind": "tool" if span.kind == "tool" else "agent",
            "turn": span.turn_id,
            "label": span.name if span.kind == "tool" else f"{span.kind}: {span.name}",
            "start_s": span.started_at - start,
            "end_s": span.finished_at - start,
            "error": span.error,
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
