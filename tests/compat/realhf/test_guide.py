"""What the guide of `realhf` shows works with one changed import: agent, environment, registers, configuration."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib

import pytest

pytest.importorskip("torch")

import torch

import ludus.compat.realhf
from ludus.api.agent import choose_agent
from ludus.compat.config import load_config
from ludus.compat.names import Table
from ludus.compat.realhf.api.core.agent_api import ALL_AGENTS, ALL_AGNETS, Agent, register_agent
from ludus.compat.realhf.api.core.config import AgentAbstraction, EnvServiceAbstraction
from ludus.compat.realhf.api.core.data_api import SequenceSample, load_hf_tokenizer
from ludus.compat.realhf.api.core.env_api import EnvironmentService, register_environment
from ludus.compat.realhf.api.core.model_api import BundledGenerationOutputs
from ludus.compat.realhf.experiments.async_exp.async_math_ppo import AsyncRLExperimentConfig, PPOMATHConfig
from ludus.compat.realhf.impl.environment.math_code_single_step_env import math_verify_call

ROW = {
    "query_id": "q1",
    "prompt": "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n",
    "task": "math",
    "solutions": ["4"],
}


class GuideEnv(EnvironmentService):
    """Judges in a thread, with the call of the guide."""

    def __init__(self, dataset_path=None):
        self.dataset_path = dataset_path

    async def reset(self, seed=None, options=None):
        return None, {}

    async def step(self, action: tuple[str, list[str]]):
        qid, answers = action
        format_rewards = await asyncio.to_thread(
            math_verify_call, {qid: ROW}, answers, [qid] * len(answers), max_workers=1
        )
        return None, format_rewards, True, False, {}


class GuideAgent(Agent):
    """The multi-turn mathematician, its sample packed by hand as the original packs it."""

    def __init__(self, tokenizer_path, num_turns=2, my_param=1.0):
        self.gconfig = ludus.compat.realhf.GenerationHyperparameters(n=1)
        self.tokenizer = load_hf_tokenizer(tokenizer_path)
        self.num_turns = num_turns
        self.my_param = my_param

    async def collect_trajectory(
        self,
        prompt: SequenceSample,
        env: EnvironmentService,
        obs_queue: asyncio.Queue,
        act_queue: asyncio.Queue,
    ):
        await env.reset()
        token_ids = prompt.data["packed_prompts"].cpu().numpy().tolist()
        qid = prompt.ids[0]
        seqs, masks, logprobs, rewards = [], [], [], []
        for _ in range(self.num_turns):
            await obs_queue.put((qid, token_ids, self.gconfig))
            act: BundledGenerationOutputs = await act_queue.get()
            seq_strs = self.tokenizer.batch_decode(act.seqs, skip_special_tokens=True)
            prompt_str = self.tokenizer.batch_decode([act.prompt_ids], skip_special_tokens=True)[0]
            answers = [seq_str.split(prompt_str)[1] for seq_str in seq_strs]
            _, success, *_ = await env.step((qid, answers))
            seqs.append(act.seqs[0])
            masks.append([1] * act.prompt_len + [0] * (act.seqlens[0] - act.prompt_len))
            logprobs.append(act.logprobs[0])
            rewards.append((float(success[0]) - 0.5) * 2)
            token_ids = list(act.seqs[0])
            if success[0]:
                feedback = "Congratulations! You are correct!"
            else:
                feedback = "Unfortunately your answer is wrong. Let's try again."
            feedback = "\n" + self.tokenizer.apply_chat_template(
                [{"content": feedback, "role": "user"}], add_generation_prompt=True, tokenize=False
            )
            token_ids.extend(self.tokenizer(feedback)["input_ids"])
        return [pack(qid, seqs, masks, logprobs, rewards)]


def pack(qid, seqs, masks, logprobs, rewards):
    ones = [[1] * len(seqs)]
    dtypes = {
        "packed_input_ids": torch.long,
        "prompt_mask": torch.bool,
        "packed_logprobs": torch.float32,
        "rewards": torch.float32,
    }
    return SequenceSample(
        keys=list(dtypes),
        ids=[qid],
        dtypes=dtypes,
        trailing_shapes=dict.fromkeys(dtypes, ()),
        seqlens={
            "packed_input_ids": [[len(seq) for seq in seqs]],
            "prompt_mask": [[len(seq) for seq in seqs]],
            "packed_logprobs": [[len(seq) - 1 for seq in seqs]],
            "rewards": ones,
        },
        data={
            "packed_input_ids": torch.tensor(flat(seqs), dtype=torch.long),
            "prompt_mask": torch.tensor(flat(masks), dtype=torch.bool),
            "packed_logprobs": torch.tensor(flat(logprobs), dtype=torch.float32),
            "rewards": torch.tensor(rewards, dtype=torch.float32),
        },
    )


def flat(rows):
    return [value for row in rows for value in row]


register_agent("guide", GuideAgent)
register_environment("guide-env", GuideEnv)


@dataclasses.dataclass
class GuideConfig(AsyncRLExperimentConfig, PPOMATHConfig):
    my_param: float = 1.0

    @property
    def agent(self) -> AgentAbstraction:
        return AgentAbstraction("guide", args={"my_param": self.my_param, "tokenizer_path": self.actor.path})

    @property
    def env(self) -> EnvServiceAbstraction:
        return EnvServiceAbstraction("guide-env", args={"dataset_path": self.dataset.path})


def test_the_agent_of_the_guide_plays(play, tiny_models):
    """Turn after turn on tokens of its own, its samples packed by hand; each turn has its own reward."""
    pytest.importorskip("math_verify")
    played = play(GuideAgent(str(tiny_models("llama"))), ["5", "4"], ROW, {"env": {"type_": "guide-env"}})
    episode = played.episode
    assert episode.outcome.kind == "ok", episode.outcome.reason
    assert list(episode.rewards.values()) == [-1.0, 1.0] and episode.left_out == {}
    first, second = episode.session.turns
    assert second.prefix == first.id
    shown = played.text.tokenizer.decode(played.engine.calls[1].prompt_ids)
    assert "Let's try again.<|im_end|>\n<|im_start|>assistant\n" in shown
    assert [span.name for span in episode.spans] == ["GuideEnv.reset", "GuideEnv.step", "GuideEnv.step"]


def test_the_configuration_of_the_guide(tiny_models):
    """`my_param=5.0` on the command line reaches the agent's constructor."""
    keys = ["my_param=5.0", f"actor.path={tiny_models('llama')}", "dataset.path=rows.jsonl"]
    agent_adapter = choose_agent(load_config(None, keys, config_class=f"{__file__}:GuideConfig"))
    assert (
        agent_adapter.name == "GuideAgent"
        and agent_adapter._agent.my_param == 5.0
        and agent_adapter._env.dataset_path == "rows.jsonl"
    )


def test_the_original_spelling():
    """ALL_AGNETS is the register too."""
    assert ALL_AGNETS is ALL_AGENTS and "guide" in ALL_AGNETS


MODULES = sorted(f"ludus.compat.realhf.{path}".rstrip(".") for path in Table.of("realhf").modules)


@pytest.mark.parametrize("name", MODULES)
def test_every_module_has_what_it_names(name):
    """All names of `__all__` are there."""
    module = importlib.import_module(name)
    assert all(hasattr(module, item) for item in module.__all__)
