"""The same dialogue as an agent of each family: with an SDK, with token ids, as a trajectory, over queues.

Knows: the agents that users of each family write.  Knows not: the model, the record.
The dialogue: instructions, a question, and after every answer the next message of the row. The reward is computed from
the last answer, so an agent that got other text has another reward.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ludus.agents.environments.base import EnvironmentService
from ludus.checks.sdk import sdk
from ludus.compat.areal.generation import ModelRequest
from ludus.compat.areal.rollout import RolloutWorkflow
from ludus.compat.art.trajectory import Trajectory
from ludus.compat.realhf.agent import Agent
from ludus.compat.realhf.generation import GenerationHyperparameters
from ludus.compat.realhf.prompts import prompt_ids
from ludus.compat.realhf.sample import SequenceSample
from ludus.compat.verl.base import AgentLoopBase
from ludus.compat.verl.output import AgentLoopOutput
from ludus.text.chat import ChatText
from ludus.types import Message

MAX_TOKENS = 64


def reward_of(answer: str) -> float:
    """The reward for the last answer: a number that depends on every character."""
    return sum(map(ord, answer)) % 97 / 97


class WorkflowAgent:
    """Workflow: uses an SDK and a base URL, and returns a number."""

    async def run(self, data: Mapping[str, Any], *, base_url: str, api_key: str, http_client: Any) -> float:
        client = sdk("openai").AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
        messages = list(data["messages"])
        answer = ""
        for said in (*data["follow_ups"], None):
            completion = await client.chat.completions.create(model="default", messages=messages, max_tokens=MAX_TOKENS)
            answer = completion.choices[0].message.content or ""
            messages.append({"role": "assistant", "content": answer})
            if said is not None:
                messages.append({"role": "user", "content": said})
        return reward_of(answer)


class RolloutAgent(RolloutWorkflow):
    """Workflow with token ids: sends requests to the engine, and returns a row of arrays."""

    def __init__(self, text: ChatText) -> None:
        self._text = text

    async def arun_episode(self, engine: Any, data: Mapping[str, Any]) -> dict[str, Any]:
        token_ids = list(prompt_ids(data, self._text))
        mask = [0] * len(token_ids)
        answer = ""
        for said in (*data["follow_ups"], None):
            request = ModelRequest(input_ids=token_ids, gconfig={"max_new_tokens": MAX_TOKENS})
            response = await engine.agenerate(request)
            token_ids = token_ids + response.output_tokens
            mask += [1] * response.output_len
            answer = self._text.tokenizer.decode(response.output_tokens_without_stop)
            if said is not None:
                added = self._text.follow_up_ids(response.output_tokens, [Message("user", said)])
                token_ids = [*token_ids, *added]
                mask += [0] * len(added)
        rows = {"input_ids": [token_ids], "attention_mask": [[1] * len(token_ids)], "loss_mask": [mask]}
        return {**rows, "rewards": [reward_of(answer)]}


class LoopAgent(AgentLoopBase):
    """Agent loop: exchanges token ids with the server, and returns one output with a mask."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        prompt_ids = await self.apply_chat_template(kwargs["raw_prompt"])
        response_ids: list[int] = []
        mask: list[int] = []
        answer_ids: Sequence[int] = ()
        for said in (*kwargs["follow_ups"], None):
            answer_ids = await self.server_manager.generate(
                "dialogue",
                prompt_ids=prompt_ids + response_ids,
                sampling_params={**sampling_params, "max_tokens": MAX_TOKENS},
            )
            response_ids += answer_ids
            mask += [1] * len(answer_ids)
            if said is not None:
                added = await self.apply_chat_template([{"role": "user", "content": said}], remove_system_prompt=True)
                response_ids += added
                mask += [0] * len(added)
        answer = self.tokenizer.decode(answer_ids, skip_special_tokens=True)
        return AgentLoopOutput(
            prompt_ids=prompt_ids, response_ids=response_ids, response_mask=mask, reward_score=reward_of(answer)
        )


async def trajectory_rollout(client: Any, data: Mapping[str, Any]) -> Trajectory:
    """Trajectory: messages and choices, with one reward."""
    trajectory = Trajectory(messages_and_choices=list(data["messages"]))
    for said in (*data["follow_ups"], None):
        completion = await client.chat.completions.create(
            model="default", messages=trajectory.messages(), max_tokens=MAX_TOKENS
        )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)
        if said is not None:
            trajectory.messages_and_choices.append({"role": "user", "content": said})
        trajectory.reward = reward_of(choice.message.content or "")
    return trajectory.finish()


class QueueEnv(EnvironmentService):
    """Returns the reward of an answer."""

    async def reset(self, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return None, {}

    async def step(self, action: tuple[str, list[str]]) -> tuple[Any, list[float], bool, bool, dict[str, Any]]:
        _, answers = action
        return None, [reward_of(answer) for answer in answers], True, False, {}


class QueueAgent(Agent):
    """Queues: sends observations as token ids, receives bundles of answers, and returns one packed sample."""

    def __init__(self, text: ChatText) -> None:
        self._text = text
        self._gconfig = GenerationHyperparameters(n=1, max_new_tokens=MAX_TOKENS, temperature=1.0)

    async def collect_trajectory(
        self,
        prompt: SequenceSample,
        env: EnvironmentService,
        obs_queue: asyncio.Queue[Any],
        act_queue: asyncio.Queue[Any],
    ) -> list[SequenceSample]:
        import torch

        row = prompt.metadata["row"][0]
        assert prompt.data is not None, "a prompt must have tokens"
        token_ids = prompt.data["packed_prompts"].tolist()
        is_prompt = [1] * len(token_ids)
        answer_ids: list[int] = []
        for said in (*row["follow_ups"], None):
            await obs_queue.put((prompt.ids[0], token_ids, self._gconfig))
            act = await act_queue.get()
            answer_ids = list(act.output_ids[0])
            token_ids = token_ids + answer_ids
            is_prompt += [0] * len(answer_ids)
            if said is not None:
                added = self._text.follow_up_ids(answer_ids, [Message("user", said)])
                token_ids = [*token_ids, *added]
                is_prompt += [1] * len(added)
        stop_ids = self._text.tokenizer.stop_ids
        answer = self._text.tokenizer.decode([token for token in answer_ids if token not in stop_ids])
        _, rewards, *_ = await env.step((str(prompt.ids[0]), [answer]))
        return [
            SequenceSample.from_default(
                ids=[prompt.ids[0]],
                seqlens=[len(token_ids)],
                data={
                    "packed_input_ids": torch.tensor(token_ids, dtype=torch.long),
                    "prompt_mask": torch.tensor(is_prompt, dtype=torch.bool),
                    "rewards": torch.tensor(rewards, dtype=torch.float64),
                },
            )
        ]
