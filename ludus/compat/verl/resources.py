"""What the loops of one run share: its configuration under verl's names too, its tools and its simulated users.

Knows: settings.  Knows not: rows, episodes, models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ludus.agents.tools.answer import ToolLimits
from ludus.agents.tools.tool_set import ToolSet
from ludus.compat.config import Config, LoopSettings
from ludus.compat.names import find
from ludus.compat.verl.config_view import LoopConfig
from ludus.compat.verl.interaction import Interactions
from ludus.rollout.settings import GenerationSettings

DEFAULT_LOOP = "single_turn_agent"


@dataclass(frozen=True, slots=True)
class LoopResources:
    """Read from the files that the configuration names."""

    config: Config
    tool_set: ToolSet
    users: Interactions

    @classmethod
    def load(cls, config: Config) -> LoopResources:
        """Raises UserError that says what is wrong in which file."""
        turns = config.rollout.multi_turn
        limits = tool_limits(config)
        tool_set = ToolSet.load(turns.tool_config_path, turns.function_tool_path, limits=limits, find=find)
        return cls(config, tool_set, Interactions.load(turns.interaction_config_path))


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
    rollout, loops = config.rollout, loop_settings(config)
    lengths = {"prompt_length": rollout.prompt_length, "response_length": rollout.response_length}
    return LoopConfig(
        {
            "actor_rollout_ref": {
                "rollout": {
                    **lengths,
                    "calculate_log_probs": True,
                    "multi_turn": rollout.multi_turn.model_dump(),
                    "agent": {
                        "default_agent_loop": loops.default_agent_loop or DEFAULT_LOOP,
                        "agent_loop_config_path": loops.agent_loop_config_path,
                    },
                    **_sampling(config.gconfig),
                    "val_kwargs": _sampling(config.eval_generation),
                },
                "model": {"path": config.model.path},
            },
            "data": {
                **{f"max_{name}": length for name, length in lengths.items()},
                "return_raw_chat": True,
                "apply_chat_template_kwargs": {},
            },
            "reward": config.reward.model_dump(),
            "trainer": {"project_name": config.run_root, "experiment_name": config.name},
        }
    )


def _sampling(generation: GenerationSettings) -> dict[str, Any]:
    return {
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        "top_k": generation.top_k or -1,
        "n": generation.n_samples,
    }
