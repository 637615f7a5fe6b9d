"""An agent for any text environment: observations become user messages, answers are actions.

Knows: the queues, the chat template, rewards of steps.  Knows not: which environment it plays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ludus.agents.adapter import current_episode
from ludus.agents.environments.base import EnvironmentService
from ludus.compat.realhf.agent import Agent, Queue
from ludus.compat.realhf.generation import GenerationHyperparameters
from ludus.compat.realhf.math_agents import discounted
from ludus.compat.realhf.prompts import ROW
from ludus.compat.realhf.sample import SequenceSample
from ludus.compat.realhf.trajectory import TrajectoryBuilder
from ludus.errors import UserError
from ludus.types import Message

_SUCCESS = ("success", "is_success")


@dataclass(eq=False)
class TextEnvironmentAgent(Agent):
    """Plays until the environment ends, or for `max_turns` answers."""

    takes_prompt = False

    gconfig: Any = None
    system_prompt: str | None = None
    """None: the first message is the first observation."""
    max_turns: int = 8
    turn_level_discount: float = 1.0
    """Discount factor on the return of the next answer."""

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise UserError(f"max_turns={self.max_turns} must be 1 or more")
        self.gconfig = GenerationHyperparameters.of(self.gconfig).new(n=1)

    async def collect_trajectory(
        self, prompt: SequenceSample, env: EnvironmentService, obs_queue: Queue, act_queue: Queue
    ) -> list[SequenceSample]:
        episode = current_episode()
        assert episode is not None and episode.session is not None, "must run inside an episode in this process"
        text, row = episode.session.text, prompt.metadata[ROW][0]
        observation, info = await env.reset(row.get("seed"), row)
        opening = [Message("system", self.system_prompt)] if self.system_prompt else []
        rendered = text.template.render([*opening, Message("user", observation)])
        token_ids = list(text.tokenizer.encode(rendered))
        trajectory, has_ended = TrajectoryBuilder(prompt), False
        rewards: list[float] = []
        while not has_ended and len(rewards) < self.max_turns:
            act = await trajectory.ask(obs_queue, act_queue, token_ids, self.gconfig)
            action = text.tokenizer.decode(act.output_ids[0], skip_special=True)
            observation, reward, terminated, truncated, info = await env.step(action)
            rewards.append(float(reward))
            has_ended = terminated or truncated
            if not has_ended:
                token_ids = [*act.seqs[0], *text.follow_up_ids(act.output_ids[0], [Message("user", observation)])]
        metrics: dict[str, list[float]] = {"return": [sum(rewards)], "num_turns": [float(len(rewards))]}
        success = next((info[name] for name in _SUCCESS if name in info), None)
        if success is not None:
            metrics["success"] = [float(success)]
        return [trajectory.build(discounted(rewards, self.turn_level_discount), metrics)]
