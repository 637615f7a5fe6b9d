"""The state of one trajectory of the tool agent, with verl's names.

Knows: messages and tokens, as plain values.  Knows not: the steps that change them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from uuid import uuid4

from ludus.agents.tools.base import BaseTool
from ludus.agents.tools.episode_tools import EpisodeTools
from ludus.compat.verl.function_tools import FunctionTool
from ludus.compat.verl.interaction import BaseInteraction
from ludus.compat.verl.parser import FunctionCall
from ludus.types import Turn


class AgentState(Enum):
    """The next step of the tool agent."""

    PENDING = "pending"
    GENERATING = "generating"
    PROCESSING_TOOLS = "processing_tools"
    INTERACTING = "interacting"
    TERMINATED = "terminated"


@dataclass(eq=False)
class AgentData:
    """The state of a trajectory, passed to every step, and to tools that accept `agent_data`."""

    messages: list[dict[str, Any]]
    image_data: Any = None
    """Always None, like videos and audio, because only text is supported."""
    video_data: Any = None
    audio_data: Any = None
    mm_processor_kwargs: dict[str, Any] | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    """Seconds by activity."""
    request_id: str = field(default_factory=lambda: uuid4().hex)
    """Also the id of the simulated user's instance."""
    tools_kwargs: Mapping[str, Any] = field(default_factory=dict)
    interaction: BaseInteraction | None = None
    """The simulated user. None: there is none."""
    interaction_kwargs: Mapping[str, Any] = field(default_factory=dict)

    prompt_ids: list[int] = field(default_factory=list)
    """All tokens so far, which the model continues."""
    response_ids: list[int] = field(default_factory=list)
    """Tokens of the last answer."""
    response_mask: list[int] = field(default_factory=list)
    """For all tokens after the first prompt: 1 if sampled by the model and to be trained."""
    response_logprobs: list[float] = field(default_factory=list)
    mm_processor_output: None = None
    routed_experts: None = None
    tool_calls: list[FunctionCall] = field(default_factory=list)
    """Tool calls of the last answer."""
    turn_scores: list[float] = field(default_factory=list)
    """The simulated user's score of each answer."""
    tool_rewards: list[float] = field(default_factory=list)
    """Rewards of the calls that were run."""
    user_turns: int = 0
    """Number of messages to the model after the first prompt; all results of one round of tools count as one."""
    assistant_turns: int = 0
    extra_fields: dict[str, Any] = field(default_factory=dict)
    """For tools, which can keep data here between calls."""

    # ---- of Ludus's steps

    episode_tools: EpisodeTools | None = None
    """The trajectory's tools, open while it runs. None: a user's own `run` did not open them; each call then opens its
    own."""
    turns: list[Turn] = field(default_factory=list)
    """Recorded answers that were requested by Ludus's own step."""
    undecoded: tuple[str, ...] = ()
    """Texts in the last answer that began as tool calls and could not be parsed."""
    recorded_ids: list[int] = field(default_factory=list)
    """The recorder's tokens for `messages`; if they differ from `prompt_ids`, a user's step has changed those."""
    has_forked: bool = False
    """Whether the template rendered earlier messages differently at some point, so that a new path began."""
    ended_by: str = "answer"
    """`answer`, `user`, or the name of the limit that was met."""

    _active_tools: Mapping[str, BaseTool | FunctionTool] = field(init=False, repr=False)
    _active_tool_schemas: list[dict[str, Any]] = field(init=False, repr=False)
    """Missing where a user's own `run` sets none: then all tools of the loop are active, as in verl."""

    def __post_init__(self) -> None:
        self.mm_processor_kwargs = dict(self.mm_processor_kwargs or {})
