"""The two math agents of this family: one gives a bundle of answers to a problem, one tries repeatedly with feedback.

Knows: tokens, the chat template, rewards of an environment.  Knows not: how an answer is judged.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from ludus.agents.adapter import current_episode
from ludus.agents.environments.base import EnvironmentService
from ludus.compat.members import with_members
from ludus.compat.realhf.agent import Agent, Queue
from ludus.compat.realhf.generation import BundledGenerationOutputs, GenerationHyperparameters
from ludus.compat.realhf.sample import SequenceSample
from ludus.compat.realhf.trajectory import TrajectoryBuilder
from ludus.errors import UserError
from ludus.models.resolve import resolve_tokenizer
from ludus.text.chat import ChatText
from ludus.types import Message

logger = logging.getLogger(__name__)

_RIGHT = "Congratulations! You are correct!"
_WRONG = "Unfortunately your answer is wrong. Let's try again."


@dataclass(eq=False)
class _MathAgent(Agent):
    """Base of both: a problem is answered, and each bundle of answers is judged and logged."""

    gconfig: Any = None
    """None: one answer, with the run's sampling parameters."""
    tokenizer_path: str | None = None
    """None: the run's model."""
    answer_save_path: str | None = field(default=None, kw_only=True)
    """Folder for files with a line of JSON for each answer. None: answers are only in the run store."""

    reward_scaling = 1.0
    reward_bias = 0.0
    num_turns = 1
    stop_on_success = False

    def __post_init__(self) -> None:
        self.gconfig = GenerationHyperparameters.of(self.gconfig)
        self._text = None if self.tokenizer_path is None else ChatText.load(resolve_tokenizer(self.tokenizer_path))

    async def collect_trajectory(
        self, prompt: SequenceSample, env: EnvironmentService, obs_queue: Queue, act_queue: Queue
    ) -> list[SequenceSample]:
        await env.reset()
        text = self._chat_text()
        trajectory, (_, token_ids) = TrajectoryBuilder(prompt), next(prompt.sequences("packed_prompts"))
        rewards: list[float] = []
        rates: list[float] = []
        while len(rates) < self.num_turns and not (self.stop_on_success and any(rates)):
            bundle = await trajectory.ask(obs_queue, act_queue, token_ids, self.gconfig)
            answers = [text.tokenizer.decode(ids, skip_special=True) for ids in bundle.output_ids]
            _, success, *_ = await env.step((prompt.ids[0], answers))
            earned = [((float(value) - 0.5) * 2 - self.reward_bias) * self.reward_scaling for value in success]
            self._write(prompt.ids[0], bundle, answers, success, earned)
            rewards += earned
            rates.append(sum(map(float, success)) / len(success))
            said = Message("user", _RIGHT if rates[-1] else _WRONG)
            token_ids = [*bundle.seqs[0], *text.follow_up_ids(bundle.output_ids[0], [said])]
        return self._samples(trajectory, rewards, rates)

    def _samples(self, trajectory: TrajectoryBuilder, rewards: list[float], rates: list[float]) -> list[SequenceSample]:
        """The samples to train. rewards: of each answer.  rates: share of right answers in each bundle."""
        raise NotImplementedError

    def _chat_text(self) -> ChatText:
        """The chat text of `tokenizer_path`'s model, or of the episode's."""
        if self._text is not None:
            return self._text
        episode = current_episode()
        if episode is None or episode.session is None:
            raise UserError("no episode is being played here; pass tokenizer_path")
        return episode.session.text

    def _write(
        self,
        qid: str,
        bundle: BundledGenerationOutputs,
        answers: Sequence[str],
        success: Sequence[Any],
        rewards: Sequence[float],
    ) -> None:
        """Write the answers as lines of JSON, with a folder for each version of the weights and a file for each
        query."""
        if self.answer_save_path is None:
            return
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
            folder = Path(self.answer_save_path) / str(bundle.version_start[idx])
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / f"{qid.replace('/', '_')}.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


@with_members("realhf", "impl.agent.math_single_step_agent.MathSingleStepAgent")
@dataclass(eq=False)
class MathSingleStepAgent(_MathAgent):
    """Answers a problem `gconfig.n` times at once; a bundle with too few or too many right answers is rejected."""

    success_rate_lb: float = 0.0
    success_rate_ub: float = 1.0
    reward_scaling: float = 1.0
    reward_bias: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        bounds = self.success_rate_lb, self.success_rate_ub
        if not 0.0 <= bounds[0] <= bounds[1] <= 1.0:
            raise UserError(f"success rates from {bounds[0]} to {bounds[1]} must lie in order from 0 to 1")

    def _samples(self, trajectory: TrajectoryBuilder, rewards: list[float], rates: list[float]) -> list[SequenceSample]:
        if not self.success_rate_lb <= rates[0] <= self.success_rate_ub:
            logger.info("bundle.rejected qid=%s success_rate=%.3f", trajectory.qid, rates[0])
            return []
        return [trajectory.build(rewards, {"success": rates})]


@with_members("realhf", "impl.agent.math_multi_turn_agent.MathMultiTurnAgent")
@dataclass(eq=False)
class MathMultiTurnAgent(_MathAgent):
    """Answers a problem, is told whether the answer is right, and answers again, `num_turns` times."""

    reward_scaling: float = 1.0
    reward_bias: float = 0.0
    turn_level_discount: float = 1.0
    """Discount factor on the return of the next turn."""
    num_turns: int = 5
    stop_on_success: bool = False
    """End after a right answer; otherwise play all turns, as the original does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_turns < 1:
            raise UserError(f"num_turns={self.num_turns} must be 1 or more")
        self.gconfig = self.gconfig.new(n=1)

    def _samples(self, trajectory: TrajectoryBuilder, rewards: list[float], rates: list[float]) -> list[SequenceSample]:
        metrics = {"success": [float(any(rates))], "first_turn_success": rates[:1]}
        return [trajectory.build(discounted(rewards, self.turn_level_discount), metrics)]


def discounted(rewards: Sequence[float], discount: float) -> list[float]:
    """Returns: each turn's reward and the discounted return of the next turn."""
    return [*accumulate(reversed(rewards), lambda after, reward: reward + discount * after)][::-1]
