"""The base class and the registry of queue agents, which send token ids to the model and get bundles of answers back.

Knows: the registry.  Knows not: the model, how trajectories are used.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, ClassVar

from ludus.agents.environments.base import EnvironmentService
from ludus.compat.realhf.abstraction import make, register
from ludus.compat.realhf.sample import SequenceSample

Queue = asyncio.Queue[Any]
ALL_AGENTS: dict[str, Any] = {
    "null": "ludus.compat.realhf.null_agent:NullAgent",
    "math-single-step": "ludus.compat.realhf.math_agents:MathSingleStepAgent",
    "math-multi-turn": "ludus.compat.realhf.math_agents:MathMultiTurnAgent",
    "text-env": "ludus.compat.realhf.text_agent:TextEnvironmentAgent",
}
"""Classes by registered name; import strings for Ludus's own."""


class Agent:
    """Base of queue agents. One instance plays all episodes, concurrently."""

    agent_kind: ClassVar[str] = "ludus.compat.realhf.adapter:from_queue"

    takes_prompt = True
    """False: the first observation comes from the environment, so rows need no prompt, and `packed_prompts` is
    empty."""

    async def collect_trajectory(
        self, prompt: SequenceSample, env: EnvironmentService, obs_queue: Queue, act_queue: Queue
    ) -> list[SequenceSample]:
        """Play an episode; returns the samples to train. An empty list rejects it.

        Puts any number of `(qid, token_ids, gconfig)` on `obs_queue`, and takes a `BundledGenerationOutputs` from
        `act_queue` for each, in the same order.
        """
        raise NotImplementedError(f"{type(self).__qualname__} must define `async def collect_trajectory`")


def register_agent(name: str, cls_: Any) -> None:
    """Register `cls_` as `name`. Raises UserError if another class has that name."""
    register(ALL_AGENTS, "agent", name, cls_)


make_agent = partial(make, ALL_AGENTS, "agent")
"""The agent that an abstraction describes. Raises UserError if no agent has that name."""
