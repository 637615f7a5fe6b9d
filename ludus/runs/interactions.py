"""Episodes as training data for other tools: token ids, masks, logprobs and rewards as JSON, one row per turn or path.

Knows: the records of `ludus.types`.  Knows not: advantages, HTTP, file formats.
Invariant: in both styles every sampled token of the episode has loss mask 1 in exactly one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ludus.runs.codec import plain
from ludus.types import Episode, Message, SessionRecord, ToolSpec, Turn

Row = dict[str, Any]
Style = Literal["individual", "concat"]
STYLES: tuple[Style, ...] = ("individual", "concat")
NO_VERSION = -1  # of tokens that nobody sampled


def interactions(episode: Episode, style: Style = "individual") -> list[Row]:
    """The rows of an episode, in the order of its turns.

    individual: one row per turn; the prompt has mask 0.  concat: one row per path from the root to a leaf; a turn on
    several paths has mask 1 only on the first.
    """
    turns = episode.session.turns
    chains = ((turn,) for turn in turns) if style == "individual" else episode.session.chains(turns)
    return [_row(episode, chain) for chain in chains]


def message_json(message: Message) -> Row:
    """A message in the form of OpenAI's protocol, with its thinking as `reasoning_content`."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    optional = {
        "reasoning_content": message.reasoning,
        "tool_calls": calls or None,
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }
    known = {name: value for name, value in optional.items() if value is not None}
    return {"role": message.role, "content": message.content, **known}


def path_of(session: SessionRecord, chain: Sequence[Turn]) -> tuple[list[int], list[int], list[float], list[int]]:
    """Token ids of the path to the last turn of `chain`, and for each token its mask, logprob and version."""
    token_ids = list(session.path_ids(chain[-1].node))
    mask, logprobs, versions = [0] * len(token_ids), [0.0] * len(token_ids), [NO_VERSION] * len(token_ids)
    for turn in chain:
        sampled = turn.sampled
        end = len(session.path_ids(turn.node))
        span = slice(end - len(sampled.token_ids), end)
        mask[span], logprobs[span], versions[span] = [1] * (span.stop - span.start), sampled.logprobs, sampled.versions
    return token_ids, mask, logprobs, versions


def _row(episode: Episode, chain: Sequence[Turn]) -> Row:
    """The row of the path to the last turn of `chain`; the turns of `chain`, in order on the path, have mask 1."""
    last = chain[-1]
    token_ids, mask, logprobs, versions = path_of(episode.session, chain)
    return {
        "session_id": episode.id,
        "group_id": episode.group_id,
        "outcome": episode.outcome.kind,
        "reason": episode.outcome.reason,
        "agent": last.agent,
        "completion_ids": [turn.id for turn in chain],
        "rewards": [episode.rewards.get(turn.id) for turn in chain],
        "follows": last.follows,
        "messages": [message_json(message) for message in last.messages],
        "reply": message_json(last.reply),
        "tools": [tool_json(tool) for tool in last.tools],
        "token_ids": token_ids,
        "loss_mask": mask,
        "logprobs": logprobs,
        "versions": versions,
        "temperature": last.sampling.temperature,
        "ended_by": last.abort_cause or last.sampled.stop_reason,
        "started_at": last.started_at,
        "finished_at": last.finished_at,
    }


def tool_json(tool: ToolSpec) -> Row:
    """A tool in the form of OpenAI's protocol."""
    parameters = plain(tool.parameters)
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": {**function, "strict": True} if tool.strict else function}
