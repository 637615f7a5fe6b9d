"""The two mathematicians of this family: a bundle of answers to a problem, or one answer after the other with feedback.

Knows: tokens, the chat template, rewards of an environment.  Knows not: how an answer is judged.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ludus.agents.adapter import current_episode
from ludus.agents.environments.base import EnvironmentService
from ludus.compat.realhf.agent import Agent
from ludus.compat.realhf.generation import BundledGenerationOutputs, GenerationHyperparameters
from ludus.compat.realhf.sample import SequenceSample
from ludus.compat.realhf.trajectory import TrajectoryBuilder
from ludus.errors import UserError
from ludus.models.resolve import resolve_model
from ludus.text.chat import ChatText
from ludus.types import Message

logger = logging.getLogger(__name__)

_RIGHT = "Congratulations! You are correct!"
_WRONG = "Unfortunately your answer is wrong. Let's try again."


class _MathAgent(Agent):
    """What both have in common: answers are asked for, judged, and written down."""

    def __init__(
        self,
        gconfig: GenerationHyperparameters,
        tokenizer_path: str | None,
        answer_save_path: str | None,
        reward_scaling: float,
        reward_bias: float,
    ) -> None:
        self.gconfig = gconfig
        self.reward_scaling = reward_scaling
        self.reward_bias = reward_bias
        self._text = None if tokenizer_path is None else ChatText.load(resolve_model(tokenizer_path))
        self._folder = None if answer_save_path is None else Path(answer_save_path)

    def _chat_text(self) -> ChatText:
        """Of the model that the agent names, or of the one that plays."""
        if self._text is not None:
            return self._text
        episode = current_episode()
        if episode is None or episode.session is None:
            raise UserError("no episode is being played here; pass tokenizer_path")
        return episode.session.text

    async def _judged(
        self, qid: str, bundle: BundledGenerationOutputs, env: EnvironmentService
    ) -> tuple[Sequence[Any], list[float]]:
        """Which answers are right, and what each is worth."""
        decode = self._chat_text().tokenizer.decode
        answers = [decode(ids, skip_special=True) for ids in bundle.output_ids]
        _, success, *_ = await env.step((qid, answers))
        rewards = [((float(value) - 0.5) * 2 - self.reward_bias) * self.reward_scaling for value in success]
        if self._folder is not None:
            _write_answers(self._folder, qid, bundle, answers, success, rewards)
        return success, rewards


class MathSingleStepAgent(_MathAgent):
    """Answers a problem `gconfig.n` times at once; a bundle with too few or too many right answers is rejected."""

    def __init__(
        self,
        gconfig: Any = None,
        tokenizer_path: str | None = None,
        answer_save_path: str | None = None,
        success_rate_lb: float = 0.0,
        success_rate_ub: float = 1.0,
        reward_scaling: float = 1.0,
        reward_bias: float = 0.0,
    ) -> None:
        """gconfig: None: one answer, sampled as the run says.  tokenizer_path: None: the run's model.
        answer_save_path: a folder for a line of JSON for each answer; None: the run store alone keeps them.
        """
        if not 0.0 <= success_rate_lb <= success_rate_ub <= 1.0:
            raise UserError(f"success rates from {success_rate_lb} to {success_rate_ub} must lie in order from 0 to 1")
        sampled = GenerationHyperparameters.of(gconfig)
        super().__init__(sampled, tokenizer_path, answer_save_path, reward_scaling, reward_bias)
        self.success_rate_lb = success_rate_lb
        self.success_rate_ub = success_rate_ub

    async def collect_trajectory(
        self,
        prompt: SequenceSample,
        env: EnvironmentService,
        obs_queue: asyncio.Queue[Any],
        act_queue: asyncio.Queue[Any],
    ) -> list[SequenceSample]:
        await env.reset()
        trajectory, (_, token_ids) = TrajectoryBuilder(prompt), next(prompt.sequences("packed_prompts"))
        bundle = await trajectory.ask(obs_queue, act_queue, token_ids, self.gconfig)
        success, rewards = await self._judged(prompt.ids[0], bundle, env)
        rate = sum(map(float, success)) / len(success)
        if not self.success_rate_lb <= rate <= self.success_rate_ub:
            logger.info("bundle.rejected qid=%s success_rate=%.3f", prompt.ids[0], rate)
            return []
        return [trajectory.build(rewards, {"success": [rate]})]


class MathMultiTurnAgent(_MathAgent):
    """Answers a problem, is told whether the answer is right, and answers again, `num_turns` times."""

    def __init__(
        self,
        gconfig: Any = None,
        tokenizer_path: str | None = None,
        answer_save_path: str | None = None,
        reward_scaling: float = 1.0,
        reward_bias: float = 0.0,
        turn_level_discount: float = 1.0,
        num_turns: int = 5,
        stop_on_success: bool = False,
    ) -> None:
        """turn_level_discount: what a turn's return keeps of the next one's.  stop_on_success: a right answer is the
        last; otherwise all turns are played, as the original does.  The others as of `MathSingleStepAgent`.
        """
        if num_turns < 1:
            raise UserError(f"num_turns={num_turns} must be 1 or more")
        sampled = GenerationHyperparameters.of(gconfig).new(n=1)
        super().__init__(sampled, tokenizer_path, answer_save_path, reward_scaling, reward_bias)
        self.turn_level_discount = turn_level_discount
        self.num_turns = num_turns
        self.stop_on_success = stop_on_success

    async def collect_trajectory(
        self,
        prompt: SequenceSample,
        env: EnvironmentService,
        obs_queue: asyncio.Queue[Any],
        act_queue: asyncio.Queue[Any],
    ) -> list[SequenceSample]:
        await env.reset()
        trajectory, (_, token_ids) = TrajectoryBuilder(prompt), next(prompt.sequences("packed_prompts"))
        rewards: list[float] = []
        solved: list[bool] = []
        while len(solved) < self.num_turns and not (self.stop_on_success and any(solved)):
            bundle = await trajectory.ask(obs_queue, act_queue, token_ids, self.gconfig)
            success, earned = await self._judged(prompt.ids[0], bundle, env)
            rewards += earned
            solved.append(bool(success[0]))
            said = Message("user", _RIGHT if solved[-1] else _WRONG)
            token_ids = [*bundle.seqs[0], *self._chat_text().follow_up_ids(bundle.output_ids[0], [said])]
        metrics = {"success": [float(any(solved))], "first_turn_success": [float(solved[0])]}
        return [trajectory.build(discounted(rewards, self.turn_level_discount), metrics)]


def _write_answers(
    folder: Path,
    qid: str,
    bundle: BundledGenerationOutputs,
    answers: Sequence[str],
    success: Sequence[Any],
    rewards: Sequence[float],
) -> None:
    """As lines of JSON, in a folder for each version of the weights and a file for each query."""
    for idx, answer in enumerate(answers):
        line = {
            "version_start": bundle.version_start[idx],
            "version_end": bundle.version_end[idx],
            "success": bool(success[idx]),
            "reward": rewards[idx],
            "prompt_len": bundle.prompt_len,
            "answer_len": bundle.output_lens[idx],
            "answer": answer,
        }
        path = folder / str(bundle.version_start[idx]) / f"{qid.replace('/', '_')}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def discounted(rewards: Sequence[float], discount: float) -> list[float]:
    """Returns: each turn's reward and the discounted return of the next turn."""
    returns: list[float] = []
    for reward in reversed(rewards):
        returns.append(reward + discount * returns[-1] if returns else reward)
    return returns[::-1]
