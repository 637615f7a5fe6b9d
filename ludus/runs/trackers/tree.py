"""Converts an episode to a tree of spans: the run, and below it every answer of the model, tool call and reward.

Knows: episodes.  Knows not: any viewer's vocabulary, how spans are stored.
Invariants: every turn and every span of the episode is in the tree; a span lies within the run's time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ludus.runs.codec import map_texts, span_fields
from ludus.runs.failures import line_of
from ludus.runs.interactions import message_json, tool_json
from ludus.runs.view import encodable
from ludus.types import Episode, Message, Span

MAX_CHARS = 20_000
"""Limit on each text, as viewers are for reading, and the conversation is repeated in every turn."""
_NAME = re.compile(r"[A-Za-z_][\w.]{0,99}")
UNDECODED = "Failed to decode tool call"
MAX_LABEL_CHARS = 250
"""MLflow refuses tags above 8000 and shows less than this."""


@dataclass(frozen=True, slots=True)
class TreeSpan(Span):
    """A span, whose kind may also be `run` or `generate`; its values are JSON-able."""

    attributes: Mapping[str, Any] = field(default_factory=dict)
    undecoded: tuple[str, ...] = ()
    """Texts in an answer that began as tool calls and could not be parsed."""
    usage: tuple[int, int] | None = None
    """Tokens of the prompt and of the answer. None: not a request to a model."""

    @property
    def error_type(self) -> str:
        """What kind of error it is: the exception's name, which is in the last line of a traceback; else how the
        episode ended; `_OTHER`, as OpenTelemetry's conventions have it, if it has no name."""
        name = line_of(self.error or "").partition(":")[0]
        outcome = self.attributes.get("outcome")
        kind = outcome["kind"] if isinstance(outcome, Mapping) else "_OTHER"
        return name if _NAME.fullmatch(name) else str(kind)


def episode_tree(episode: Episode) -> tuple[TreeSpan, ...]:
    """The spans of a finished episode: first the run's, then those below it in the order of time."""
    children = [*_answers(episode), *(TreeSpan(**map_texts(span_fields(span), cut)) for span in episode.spans)]
    if episode.reward is not None and not any(child.kind == "reward" for child in children):
        # The agent computed the reward itself, so no duration was measured.
        given = {"reward": episode.reward, "rewards": dict(episode.rewards)}
        children.append(TreeSpan("reward", "reward", episode.finished_at, episode.finished_at, outputs=given))
    children.sort(key=lambda child: (child.started_at, child.finished_at))
    started_at = min([episode.started_at or episode.finished_at, *(child.started_at for child in children)])
    finished_at = max([episode.finished_at, *(child.finished_at for child in children)])
    turns = episode.session.turns
    outcome = episode.outcome
    run = TreeSpan(
        kind="run",
        name="run",
        started_at=started_at,
        finished_at=finished_at,
        inputs={"messages": [_shown(message) for message in turns[0].messages]} if turns else None,
        outputs={
            "reply": map_texts(turns[-1].reply.content, cut) if turns else None,
            "reward": episode.reward,
            "outcome": outcome.kind,
        },
        error=cut(outcome.reason) or outcome.kind
        if outcome.kind in ("failed", "timeout", "cancelled", "lost")
        else None,
        attributes={
            "outcome": {"kind": outcome.kind, "reason": cut(outcome.reason)},
            "rewards": dict(episode.rewards),
            "metrics": dict(episode.metrics),
            "metadata": map_texts(episode.metadata, cut),
            "num_turns": len(turns),
            "num_sampled_tokens": episode.session.num_sampled_tokens,
        },
    )
    return (run, *children)


def labels_of(episode: Episode, run_name: str, step: int | None) -> dict[str, str]:
    """Labels that link a trace to its run, step, sample and group."""
    labels = {
        "run": run_name,
        "sample": episode.task_id,
        "group": episode.group_id,
        "episode": episode.id,
        "split": "eval" if episode.is_eval else "train",
        "outcome": episode.outcome.kind,
    }
    if step is not None:
        labels["step"] = str(step)
    if episode.reward is not None:
        labels["reward"] = f"{episode.reward:g}"
    return {name: cut(value)[:MAX_LABEL_CHARS] for name, value in labels.items()}


def _answers(episode: Episode) -> Iterator[TreeSpan]:
    record = episode.session
    for turn in record.turns:
        sampled = turn.sampled
        num_sampled = len(sampled.token_ids)
        num_prompt = len(record.path_ids(turn.node)) - num_sampled
        yield TreeSpan(
            kind="generate",
            name="generate" if not turn.agent else f"generate ({turn.agent})",
            started_at=turn.started_at,
            finished_at=turn.finished_at,
            inputs={
                "messages": [_shown(message) for message in turn.messages],
                **({"tools": [tool_json(tool) for tool in turn.tools]} if turn.tools else {}),
            },
            outputs={"choices": [{"index": 0, "finish_reason": turn.finish_reason, "message": _shown(turn.reply)}]},
            error=f"aborted: {turn.abort_cause or 'by the engine'}" if sampled.stop_reason == "abort" else None,
            turn_id=turn.id,
            attributes={
                "prefix": turn.prefix,
                "follows": turn.follows,
                "fork": turn.fork,
                "reward": episode.rewards.get(turn.id),
                "stop_reason": sampled.stop_reason,
                "versions": sorted(set(sampled.versions)),
                "mean_logprob": sum(sampled.logprobs) / num_sampled if num_sampled else None,
                "num_cached_tokens": sampled.num_cached_tokens,
                "temperature": turn.sampling.temperature,
                "seed": sampled.seed,
                "token_ids": list(sampled.token_ids),
            },
            undecoded=tuple(map(cut, turn.undecoded)),
            usage=(num_prompt, num_sampled),
        )


def _shown(message: Message) -> dict[str, Any]:
    """A message in OpenAI's format, which viewers show as a chat."""
    return dict(map_texts(message_json(message), cut))


def cut(text: str) -> str:
    """The text in a form that every client accepts: the middle of a very long one is left out, and lone surrogates are
    replaced by a mark."""
    text = encodable(text)
    if len(text) <= MAX_CHARS:
        return text
    half = MAX_CHARS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters …\n{text[-half:]}"
