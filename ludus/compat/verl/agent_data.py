"""One trajectory of the tool agent as it grows, by the names that verl gives its parts.

Knows: messages and tokens, as plain values.  Knows not: what any step does with them.
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
    """What comes next."""

    PENDING = "pending"
    GENERATING = "generating"
    PROCESSING_TOOLS = "processing_tools"
    INTERACTING = "interacting"
    TERMINATED = "terminated"


@dataclass(eq=False)
class AgentData:
    """Tools that take `agent_data` are given it, and so is every step."""

    messages: list[dict[str, Any]]
    image_data: Any = None
    """None, and so are videos and sounds: models here read text alone."""
    video_data: Any = None
    audio_data: Any = None
    mm_processor_kwargs: dict[str, Any] | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    """Seconds, by what they were for."""
    request_id: str = field(default_factory=lambda: uuid4().hex)
    """Of the simulated user's instance too."""
    tools_kwargs: Mapping[str, Any] = field(default_factory=dict)
    interaction: BaseInteraction | None = None
    """None: nobody answers the model but tools."""
    interaction_kwargs: Mapping[str, Any] = field(default_factory=dict)

    prompt_ids: list[int] = field(default_factory=list)
    """All tokens so far: what the model is asked to go on with."""
    response_ids: list[int] = field(default_factory=list)
    """Of the last answer."""
    response_mask: list[int] = field(default_factory=list)
    """Of all tokens behind the first prompt: 1 where the model sampled, and what it sampled is to be trained."""
    response_logprobs: list[float] = field(default_factory=list)
    mm_processor_output: None = None
    routed_experts: None = None
    tool_calls: list[FunctionCall] = field(default_factory=list)
    """Of the last answer."""
    turn_scores: list[float] = field(default_factory=list)
    """What a simulated user gave each answer."""
    tool_rewards: list[float] = field(default_factory=list)
    """Of each call that was run."""
    user_turns: int = 0
    """Messages to the model behind the first prompt; those of one round of tools are one."""
    assistant_turns: int = 0
    extra_fields: dict[str, Any] = field(default_factory=dict)
    """Free for tools: what one call leaves there, the next one finds."""

    # ---- of Ludus's steps

    episode_tools: EpisodeTools | None = None
    """Open while the trajectory runs. None: a `run` of the user's own opened none, and each call opens its own."""
    turns: list[Turn] = field(default_factory=list)
    """Recorded answers that Ludus's own step asked for."""
    undecoded: tuple[str, ...] = ()
    """What began as a call in the last answer, and is none."""
    recorded_ids: list[int] = field(default_factory=list)
    """`prompt_ids` as the recorder goes on with `messages`; where the two differ, a step of the user's has set them."""
    has_forked: bool = False
    """Whether the template once showed earlier messages otherwise, so that a path of its own was begun."""
    ended_by: str = "answer"
    """`answer`, `user`, or the name of the limit that was met."""

    _active_tools: Mapping[str, BaseTool | FunctionTool] = field(default_factory=dict, init=False)
    _active_tool_schemas: list[dict[str, Any]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.mm_processor_kwargs = dict(self.mm_processor_kwargs or {})
