"""A queue agent, its environment and the configuration that names both, as users of `realhf` write them.

They count by turns: the environment begins, the agent says the next number, the environment the one after that, and so
on, whether the agent was right or not.
"""

import dataclasses
import re

from ludus.compat.realhf import TrajectoryBuilder
from ludus.compat.realhf.api.core.agent_api import Agent, register_agent
from ludus.compat.realhf.api.core.config import AgentAbstraction, EnvServiceAbstraction
from ludus.compat.realhf.api.core.data_api import load_hf_tokenizer
from ludus.compat.realhf.api.core.env_api import EnvironmentService, register_environment
from ludus.compat.realhf.experiments.async_exp.async_rl_exp import AsyncRLExperimentConfig

REWARD_OF_A_NUMBER = 0.1  # beside 1 for the right one: what is no number is nowhere near


class CountingEnvironment(EnvironmentService):
    """One game: it knows whose turn it is, so every episode has one of its own."""

    def __init__(self, row=None):
        self.row = row

    def for_episode(self, row):
        return CountingEnvironment(row)

    async def reset(self, seed=None, options=None):
        self.expected = self.row["start"] + self.row["step"]
        return str(self.row["start"]), {}

    async def step(self, action):
        wanted, numbers = self.expected, re.findall(r"\d+", action)
        is_right = numbers == [str(wanted)]
        reward = 1.0 if is_right else REWARD_OF_A_NUMBER * (len(numbers) == 1)
        self.expected += 2 * self.row["step"]
        return str(wanted + self.row["step"]), reward, False, False, {"success": is_right}


class CountingAgent(Agent):
    def __init__(self, gconfig, tokenizer_path, num_turns, turn_level_discount):
        self.gconfig = gconfig.new(n=1)
        self.tokenizer = load_hf_tokenizer(tokenizer_path)
        self.num_turns = num_turns
        self.turn_level_discount = turn_level_discount

    async def collect_trajectory(self, prompt, env, obs_queue, act_queue):
        await env.reset()
        qid = prompt.ids[0]
        token_ids = prompt.data["packed_prompts"].cpu().numpy().tolist()
        trajectory, rewards, successes = TrajectoryBuilder(prompt), [], []
        for _ in range(self.num_turns):
            await obs_queue.put((qid, token_ids, self.gconfig))
            act = await act_queue.get()
            trajectory.add(act)
            answer = self.tokenizer.decode(act.output_ids[0], skip_special_tokens=True)
            said, reward, _, _, info = await env.step(answer)
            rewards.append(reward)
            successes.append(info["success"])
            token_ids = list(act.seqs[0])
            token_ids.extend(self.heard(said, act.no_eos[0]))
        for turn in reversed(range(len(rewards) - 1)):
            rewards[turn] += rewards[turn + 1] * self.turn_level_discount
        metadata = {"success": [all(successes)], "right_numbers": [sum(successes)]}
        return [trajectory.build(rewards, metadata)]

    def heard(self, said, was_cut):
        """Token ids of what the environment said; an answer that was cut short is closed first."""
        text = f"\n<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"
        return self.tokenizer(("<|im_end|>" if was_cut else "") + text)["input_ids"]


@dataclasses.dataclass
class CountingConfig(AsyncRLExperimentConfig):
    num_turns: int = 3
    turn_level_discount: float = 0.0

    @property
    def agent(self):
        args = {
            "gconfig": self.generation_config,
            "tokenizer_path": self.actor.path,
            "num_turns": self.num_turns,
            "turn_level_discount": self.turn_level_discount,
        }
        return AgentAbstraction("counting", args)

    @property
    def env(self):
        return EnvServiceAbstraction("counting")


register_agent("counting", CountingAgent)
register_environment("counting", CountingEnvironment)
