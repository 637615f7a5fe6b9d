"""How a run plays agent loops: which, with which tools and users, under which limits.

Knows: settings.  Knows not: rows, episodes, models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ludus.agents.tools import ToolLimits, ToolSet
from ludus.compat.names import find
from ludus.compat.verl.config_view import LoopConfig
from ludus.compat.verl.interaction import Interactions
from ludus.compat.verl.settings import MultiTurnSettings, RewardSettings
from ludus.settings import merged

DEFAULT_LOOP = "single_turn_agent"


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """What the configuration says about agent loops."""

    default_agent_loop: str = DEFAULT_LOOP
    """Of rows without `agent_name`."""
    agent_loop_config_path: str | None = None
    """YAML of more loops. None: those that code registers."""
    multi_turn: MultiTurnSettings = field(default_factory=MultiTurnSettings)
    prompt_length: int | None = None
    """Most tokens of a row's prompt. None: what the model's context holds."""
    response_length: int | None = None
    """Most tokens behind it, of the model, of tools and of users. None: what the model's context holds."""
    reward: RewardSettings = field(default_factory=RewardSettings)
    config: Mapping[str, Any] = field(default_factory=dict)
    """More of the configuration for loops to read, nested as verl's."""

    @property
    def tool_limits(self) -> ToolLimits:
        turns = self.multi_turn
        return ToolLimits(
            timeout_s=turns.tool_timeout_s,
            max_response_tokens=turns.max_tool_response_length,
            truncate_side=turns.tool_response_truncate_side,
        )

    def loop_config(self) -> LoopConfig:
        """The configuration as loops read it: all the names of verl's that stand for something here."""
        rollout = {
            "prompt_length": self.prompt_length,
            "response_length": self.response_length,
            "calculate_log_probs": True,
            "multi_turn": self.multi_turn.model_dump(),
            "agent": {
                "default_agent_loop": self.default_agent_loop,
                "agent_loop_config_path": self.agent_loop_config_path,
            },
        }
        own = {
            "actor_rollout_ref": {"rollout": rollout, "model": {}},
            "data": {
                "max_prompt_length": self.prompt_length,
                "max_response_length": self.response_length,
                "return_raw_chat": True,
                "apply_chat_template_kwargs": {},
            },
            "reward": self.reward.model_dump(),
        }
        return LoopConfig(merged(own, self.config))


@dataclass(frozen=True, slots=True)
class LoopResources:
    """What the loops of one run share."""

    plan: LoopPlan
    tool_set: ToolSet
    users: Interactions

    @classmethod
    def load(cls, plan: LoopPlan) -> LoopResources:
        """Reads the files that the plan names. Raises UserError that says what is wrong in which."""
        turns = plan.multi_turn
        tool_set = ToolSet.load(turns.tool_config_path, turns.function_tool_path, limits=plan.tool_limits, find=find)
        return cls(plan, tool_set, Interactions.load(turns.interaction_config_path))
