"""What the loops of one run share: its configuration under verl's names too, its tools and its simulated users.

Knows: settings.  Knows not: rows, episodes, models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ludus.agents.tools.answer import ToolLimits
from ludus.agents.tools.tool_set import ToolSet
from ludus.compat.config import Config, LoopSettings
from ludus.compat.keys import Key, nested
from ludus.compat.names import find
from ludus.compat.verl.config_view import LoopConfig
from ludus.compat.verl.interaction import BaseInteraction, load_interactions
from ludus.compat.verl.keys import KEYS

NO_LIMIT = 2**31 - 1
"""What loops of verl's read where a length has no limit: they compare numbers with it, and no context reaches it."""
_ROLLOUT = "actor_rollout_ref.rollout."
_LENGTHS = (
    *("data.max_prompt_length", "data.max_response_length"),
    *(_ROLLOUT + "prompt_length", _ROLLOUT + "response_length"),
)
_HERE = {
    _ROLLOUT + "calculate_log_probs": True,
    _ROLLOUT + "full_determinism": False,
    _ROLLOUT + "mode": "async",
    "data.truncation": "error",
    "trainer.nnodes": 1,
}
"""What loops of verl's read and no setting says."""
DEFAULT_LOOP = "single_turn_agent"


@dataclass(frozen=True, slots=True)
class LoopResources:
    """Read from the files that the configuration names."""

    config: Config
    tool_set: ToolSet
    users: Mapping[str, BaseInteraction]

    @classmethod
    def load(cls, config: Config) -> LoopResources:
        """Raises UserError that says what is wrong in which file."""
        turns = config.rollout.multi_turn
        limits = tool_limits(config)
        tool_set = ToolSet.load(turns.tool_config_path, turns.function_tool_path, limits=limits, find=find)
        return cls(config, tool_set, load_interactions(turns.interaction_config_path))


def loop_settings(config: Config) -> LoopSettings:
    """Which loops there are."""
    agent = config.rollout.agent
    return agent if isinstance(agent, LoopSettings) else LoopSettings()


def tool_limits(config: Config) -> ToolLimits:
    """Of one call of a tool."""
    turns = config.rollout.multi_turn
    return ToolLimits(
        timeout_s=turns.tool_timeout_s,
        max_response_tokens=turns.max_tool_response_length,
        truncate_side=turns.tool_response_truncate_side,
    )


def loop_config(config: Config) -> LoopConfig:
    """The configuration as loops read it: all the names of verl's that stand for something here."""
    ours = {**config.model_dump(), "eval_gconfig": config.eval_generation.model_dump()}
    found: dict[str, Any] = dict(_HERE)
    for name, key in sorted(KEYS.items()):
        if isinstance(key, Key) and (key.ours or key.values):
            found[name.removesuffix(".*")] = _value_at(ours, key.ours[0]) if key.ours else (key.values or ())[0]
    found |= {
        "actor_rollout_ref.rollout.agent.default_agent_loop": loop_settings(config).default_agent_loop or DEFAULT_LOOP,
        "actor_rollout_ref.rollout.top_k": config.gconfig.top_k or -1,
        "actor_rollout_ref.rollout.val_kwargs.top_k": config.eval_generation.top_k or -1,
        "reward": ours["reward"],
        "trainer.project_name": config.run_root,
    }
    found |= {name: NO_LIMIT for name in _LENGTHS if found[name] is None}
    turns = found[_ROLLOUT + "multi_turn"]
    longest = turns["max_tool_response_length"] or NO_LIMIT
    found[_ROLLOUT + "multi_turn"] = {**turns, "max_tool_response_length": longest}
    return LoopConfig(nested({tuple(name.split(".")): value for name, value in found.items()}))


def _value_at(values: Any, name: str) -> Any:
    """None: there is no such key."""
    for part in name.removesuffix(".*").split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values
