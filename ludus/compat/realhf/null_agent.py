"""An agent that requests a few tokens and gives no reward, to test the queues.

Knows: the queues.  Knows not: tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

from ludus.agents.environments.base import EnvironmentService
from ludus.compat.members import with_members
from ludus.compat.realhf.agent import Agent, Queue
from ludus.compat.realhf.generation import GenerationHyperparameters
from ludus.compat.realhf.sample import SequenceSample
from ludus.compat.realhf.trajectory import TrajectoryBuilder


@with_members("realhf", "impl.agent.null_agent.NullAgent")
@dataclass(eq=False)
class NullAgent(Agent):
    """Sends the prompt `episode_length` times, and returns `traj_size` samples with reward 0."""

    episode_length: int = 1
    traj_size: int = 1

    async def collect_trajectory(
        self, prompt: SequenceSample, env: EnvironmentService, obs_queue: Queue, act_queue: Queue
    ) -> list[SequenceSample]:
        _, token_ids = next(prompt.sequences("packed_prompts"))
        trajectory = TrajectoryBuilder(prompt)
        for _ in range(self.episode_length):
            await env.step(await trajectory.ask(obs_queue, act_queue, token_ids, GenerationHyperparameters()))
        return [trajectory.build([0.0] * self.episode_length)] * self.traj_size
