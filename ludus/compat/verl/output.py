"""The output of agent loops, and how it is made from a record.

Knows: token ids, masks, the record's graph.  Knows not: rewards' meaning, training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import pydantic

from ludus.agents.tools.episode_tools import EpisodeTools
from ludus.compat.members import with_members
from ludus.compat.verl.messages import message_value
from ludus.compat.verl.server import TokenOutput
from ludus.episodes.claim import TokenRow
from ludus.errors import UserError
from ludus.runs.interactions import path_of
from ludus.types import Message, SessionRecord, Turn


class AgentLoopMetrics(pydantic.BaseModel):
    """Where the time of one trajectory went, in seconds."""

    model_config = pydantic.ConfigDict(extra="allow")

    generate_sequences: float = 0.0
    tool_calls: float = 0.0
    compute_score: float = 0.0
    num_preempted: int = -1
    """-1: not counted."""


@with_members("verl", "experimental.agent_loop.agent_loop.AgentLoopOutput")
class AgentLoopOutput(pydantic.BaseModel):
    """One sequence of a trajectory. Recorded tokens are trained; the ids only identify them."""

    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    prompt_ids: list[int]
    response_ids: list[int]
    """Tokens of the model, of tools and of users, in order."""
    response_mask: list[int]
    """1: sampled by the model, and to be trained. 0: any other token."""
    response_logprobs: list[float] | None = None
    """Not read: the logprobs are those that were recorded."""
    routed_experts: Any = None
    """Not read: no engine here records them."""
    multi_modal_data: dict[str, Any] | None = None
    """Must be empty: models here read text alone."""
    reward_score: float | None = None
    """None: the run's reward function says it."""
    num_turns: int = 0
    """Messages of user, model and tools."""
    metrics: AgentLoopMetrics = AgentLoopMetrics()
    extra_fields: dict[str, Any] = pydantic.Field(default_factory=dict)
    """Kept with the episode; numbers below `metrics` in it are averaged and shown."""
    mm_processor_kwargs: dict[str, Any] | None = None
    mm_processor_output: Any = None
    _turn_ids: tuple[str, ...] = pydantic.PrivateAttr(default=())
    """Turns that it is known to hold."""

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _know_turn(cls, data: Any, handler: pydantic.ModelWrapValidatorHandler[Self]) -> Self:
        """Remember the turn of an answer that is given as it came from `generate`, before it becomes a plain list."""
        made = handler(data)
        answer = data.get("response_ids") if isinstance(data, Mapping) else None
        if isinstance(answer, TokenOutput) and answer.turn is not None:
            made._turn_ids = (answer.turn.id,)
        return made

    @pydantic.model_validator(mode="after")
    def _check(self) -> AgentLoopOutput:
        if len(self.response_ids) != len(self.response_mask):
            raise UserError(
                f"response_ids has {len(self.response_ids)} tokens and response_mask {len(self.response_mask)}; "
                "they must match"
            )
        if self.response_logprobs is not None and len(self.response_logprobs) != len(self.response_ids):
            raise UserError(
                f"response_logprobs has {len(self.response_logprobs)} numbers for {len(self.response_ids)} tokens"
            )
        if self.multi_modal_data:
            raise UserError(f"multi_modal_data holds {sorted(self.multi_modal_data)}; models here read text alone")
        return self

    def row(self) -> TokenRow:
        """The sequence as it is matched with the record."""
        mask = [0] * len(self.prompt_ids) + self.response_mask
        return TokenRow([*self.prompt_ids, *self.response_ids], mask, self.reward_score, self._turn_ids)


def trajectory_of(
    record: SessionRecord,
    turns: Sequence[Turn],
    messages: Sequence[Message],
    tools: EpisodeTools | None,
    *,
    ended_by: str,
    extra_fields: Mapping[str, Any],
    own: Mapping[str, Any] | None = None,
    **shared: Any,
) -> AgentLoopOutput | list[AgentLoopOutput]:
    """What the loops that come with Ludus return of these turns: one output, or several where there are several paths.

    tools: closed.  ended_by: `answer`, `user`, or the name of the limit that was met.  own: tokens and mask of the one
    output, as the loop has them; None: the record says them.
    """
    found = {
        "tool_scores": {} if tools is None else dict(tools.rewards),
        "ended_by": ended_by,
        "truncated": ended_by not in ("answer", "user") or turns[-1].sampled.stop_reason == "length",
        "messages": [message_value(message) for message in messages],
    }
    if own is not None:
        output = AgentLoopOutput(**own, extra_fields={**extra_fields, **found}, **shared)
        output._turn_ids = tuple(turn.id for turn in turns)
        return output
    outputs = outputs_of(record, turns, extra_fields={**extra_fields, **found}, **shared)
    return outputs if len(outputs) > 1 else outputs[0]


def outputs_of(record: SessionRecord, turns: Sequence[Turn] | None = None, **shared: Any) -> list[AgentLoopOutput]:
    """One output for each path of the record that holds turns of its own, the one with the last turn in the end.

    turns: those that are to be trained. None: all.  shared: fields that all outputs get.
    """
    chosen = record.turns if turns is None else turns
    order = {turn.id: idx for idx, turn in enumerate(chosen)}
    chains = sorted(record.chains(chosen), key=lambda chain: order[chain[-1].id])
    outputs = []
    for chain in chains:
        ids, mask, logprobs, _ = path_of(record, chain)
        prompt, response = slice(mask.index(1)), slice(mask.index(1), None)
        own: dict[str, Any] = {"response_mask": mask[response], "response_logprobs": logprobs[response]}
        outputs.append(AgentLoopOutput(prompt_ids=ids[prompt], response_ids=ids[response], **own, **shared))
        outputs[-1]._turn_ids = tuple(turn.id for turn in chain)
    return outputs
