"""Agents that are played through two queues: token ids out to the model, bundles of answers back.

Knows: the agents' register.  Knows not: who answers, what becomes of the trajectories.
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
"""By registered name the class; an import string of those that nobody has registered again."""


class Agent:
    """Base of queue agents. One instance plays all episodes, many at once."""

    agent_kind: ClassVar[str] = "ludus.compat.realhf.adapter:from_queue"

    takes_prompt = True
    """False: the environment gives the first observation, and rows need no prompt; `packed_prompts` is then empty."""

    async def collect_trajectory(
        self, prompt: SequenceSample, env: EnvironmentService, obs_queue: Queue, act_queue: Queue
    ) -> list[SequenceSample]:
        """What is to be trained of one episode; an empty list rejects it.

        Puts `(qid, token_ids, gconfig)` on `obs_queue` as often as it likes, and takes a `BundledGenerationOutputs`
        from `act_queue` for each, in the same order.
        """
        raise NotImplementedError(f"{type(self).__qualname__} must define `async def collect_trajectory`")


def register_agent(name: str, cls_: Any) -> None:
    """Makes `cls_` known as `name`. Raises UserError if another class has that name."""
    register(ALL_AGENTS, "agent", name, cls_)


make_agent = partial(make, ALL_AGENTS, "agent")
"""The agent that an abstraction describes. Raises UserError if no agent has that name."""
