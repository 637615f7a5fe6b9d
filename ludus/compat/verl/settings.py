"""Settings of agent loops, with verl's names of keys.

Knows: plain values.  Knows not: loops, tools, models.
"""

from __future__ import annotations

from typing import Any, Literal

import pydantic

from ludus.settings import Settings


class MultiTurnSettings(Settings):
    """Tools, simulated users and limits of the loops that come with Ludus."""

    max_assistant_turns: int | None = pydantic.Field(default=None, ge=1)
    """Maximum answers of the model. None: no limit. Calls in the last answer are not run: nothing would read them."""
    max_user_turns: int | None = pydantic.Field(default=None, ge=1)
    """Maximum messages to the model, from tools (all of one turn together) or a simulated user. None: no limit."""
    max_parallel_calls: int = pydantic.Field(default=1, ge=1)
    """How many calls of one answer are run, concurrently; further calls come back as errors that say so."""
    max_tool_response_length: int | None = pydantic.Field(default=256, ge=1)
    """Maximum tokens of one tool's answer; a longer one is cut. None: no limit."""
    tool_response_truncate_side: Literal["left", "middle", "right"] = "middle"
    """What is cut off an answer that is too long: its left, its right, or the middle."""
    tool_timeout_s: float | None = pydantic.Field(default=60.0, gt=0)
    """Time limit of one call, unless the tool's file sets another. None: as long as the episode."""
    tool_config_path: str | None = None
    """YAML with `tools:`. None: there are none."""
    function_tool_path: str | None = None
    """Python file whose functions marked `@function_tool` are tools. None: there is none."""
    interaction_config_path: str | None = None
    """YAML with `interaction:`, simulated users by name. None: there are none."""
    format: str | None = None
    """The parser of tool calls; it stands for `model.tool_parser`. One that code registers is the loops' alone. None:
    the model's own."""


class CustomRewardSettings(Settings):
    """A function that scores episodes that a loop did not score."""

    path: str | None = None
    """Python file, or module. None: the reward depends on the row's `data_source`, or comes from its tools."""
    name: str = "compute_score"
    reward_kwargs: dict[str, Any] = pydantic.Field(default_factory=dict)
    """Further arguments of the function, by name."""


class RewardSettings(Settings):
    """How to score episodes of agent loops that return no `reward_score`."""

    custom_reward_function: CustomRewardSettings = CustomRewardSettings()
