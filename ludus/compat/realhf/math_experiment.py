"""Configurations for math problems with queue agents, with the originals' names and keys.

Knows: parameters, the agent and the environment that they describe.  Knows not: how these work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ludus.api.experiment import ExperimentConfig
from ludus.compat.keys import keys_beside, meaning_of
from ludus.compat.members import with_members
from ludus.compat.realhf.abstraction import AgentAbstraction, EnvServiceAbstraction
from ludus.compat.realhf.generation import GenerationHyperparameters
from ludus.settings import Path_

_KEYS = keys_beside(__file__)


@with_members("realhf", "api.cli_args.PPOHyperparameters")
@dataclasses.dataclass
class PPOHyperparameters:
    """Sampling parameters, and the reward of a right answer."""

    gen: GenerationHyperparameters = dataclasses.field(default_factory=GenerationHyperparameters)
    reward_output_scaling: float = 1.0
    reward_output_bias: float = 0.0


@with_members("realhf", "experiments.async_exp.async_rl_exp.AsyncRLExperimentConfig")
@dataclasses.dataclass
class AsyncRLExperimentConfig(ExperimentConfig):
    """Base of configurations that name an agent and an environment; the defaults do nothing useful."""

    @classmethod
    def renamed(cls, path: Path_, value: Any) -> Iterable[tuple[Path_, Any]]:
        meaning = meaning_of(_KEYS, ".".join(map(str, path)), value, {})
        ours = {} if meaning is None else meaning.ours
        return [(tuple(own.split(".")), theirs) for own, theirs in ours.items()] or [(path, value)]

    @property
    def agent(self) -> Any:
        return AgentAbstraction("null")

    @property
    def env(self) -> Any:
        return EnvServiceAbstraction("null")

    @property
    def generation_config(self) -> GenerationHyperparameters:
        """Parameters for one answer to each observation, sampled by `gconfig`."""
        return GenerationHyperparameters()

    @property
    def dataset(self) -> Any:
        """The training rows; `dataset.path` is their location."""
        return self.train_dataset

    @property
    def actor(self) -> Any:
        """The model under training; `actor.path` names it."""
        return self.model


@with_members("realhf", "experiments.common.ppo_math_exp.PPOMATHConfig")
@dataclasses.dataclass
class PPOMATHConfig(ExperimentConfig):
    """Parameters for math problems: number of answers to a problem, which bundles are accepted."""

    group_size: int = 1
    """Answers in a bundle. More than one: the bundle is the group, and a row is played once."""
    success_rate_lb: float = 0.0
    success_rate_ub: float = 1.0
    ppo: PPOHyperparameters = dataclasses.field(default_factory=PPOHyperparameters)

    def settings(self) -> Mapping[str, Any]:
        if self.group_size == 1:
            return {}
        return {"gconfig": {"n_samples": 1}, "rollout": {"min_members": 1}}


@with_members("realhf", "experiments.async_exp.async_ppo_math_exp.AsyncPPOMATHConfig")
@dataclasses.dataclass
class AsyncPPOMATHConfig(AsyncRLExperimentConfig, PPOMATHConfig):
    """Bundles of answers to problems, judged in one step."""

    @property
    def agent(self) -> AgentAbstraction:
        bounds = {"success_rate_lb": self.success_rate_lb, "success_rate_ub": self.success_rate_ub}
        return self._mathematician("math-single-step", bounds)

    def _mathematician(self, type_: str, args: Mapping[str, Any]) -> AgentAbstraction:
        shared = {
            "gconfig": self.generation_config,
            "tokenizer_path": self.actor.path,
            "reward_scaling": self.ppo.reward_output_scaling,
            "reward_bias": self.ppo.reward_output_bias,
        }
        return AgentAbstraction(type_, {**shared, **args})

    @property
    def env(self) -> EnvServiceAbstraction:
        return EnvServiceAbstraction("math-code-single-step", args={"dataset_path": self.dataset.path})

    @property
    def generation_config(self) -> GenerationHyperparameters:
        return self.ppo.gen.new(n=self.group_size)


@dataclasses.dataclass
class AsyncPPOMATHMultiTurnConfig(AsyncPPOMATHConfig):
    """One answer after the other, with feedback."""

    turn_level_discount: float = 1.0
    num_turns: int = 5

    @property
    def agent(self) -> AgentAbstraction:
        turns = {"turn_level_discount": self.turn_level_discount, "num_turns": self.num_turns}
        return self._mathematician("math-multi-turn", turns)

    def settings(self) -> Mapping[str, Any]:
        """An episode has one conversation, regardless of `group_size`, which the original sets to `num_turns`."""
        return {}
