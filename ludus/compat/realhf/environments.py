"""The registry of environments, and an environment for agents that need none.

Knows: names, classes.  Knows not: agents, tokens.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ludus.agents.environments.base import EnvironmentService
from ludus.compat.realhf.abstraction import make, register

ALL_ENV_CLASSES: dict[str, Any] = {
    "null": "ludus.compat.realhf.environments:NullEnvironment",
    "math-code-single-step": "ludus.compat.realhf.math_code:MathCodeSingleStepEnv",
    "gym": "ludus.agents.environments.gym:GymEnvironment",
    "reasoning-gym": "ludus.agents.environments.reasoning:ReasoningGymEnvironment",
}
"""Classes by registered name; import strings for Ludus's own."""


class NullEnvironment(EnvironmentService):
    """For agents that need none: every step ends it, with reward 0."""

    async def reset(self, seed: int | None = None, options: Any = None) -> tuple[None, dict[str, Any]]:
        return None, {}

    async def step(self, action: Any) -> tuple[None, float, bool, bool, dict[str, Any]]:
        return None, 0.0, True, False, {}


def register_environment(name: str, env_cls: Any) -> None:
    """Register `env_cls` as `name`. Raises UserError if another class has that name."""
    register(ALL_ENV_CLASSES, "environment", name, env_cls)


make_env = partial(make, ALL_ENV_CLASSES, "environment")
"""The environment that an abstraction describes. Raises UserError if no environment has that name."""
