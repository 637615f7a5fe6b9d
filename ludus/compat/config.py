"""The configuration including the families' keys, which the command line and `ludus.Config` read.

Knows: which keys and rows ask for which kind of agent.  Knows not: what the core does with its own keys.
Invariant: every configuration of the core has the same meaning here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import pydantic

from ludus import config as core
from ludus.api import experiment
from ludus.compat import overrides
from ludus.compat.keys import hint
from ludus.compat.verl.keys import KEYS, renamed
from ludus.compat.verl.settings import MultiTurnSettings, RewardSettings
from ludus.errors import ConfigError
from ludus.rollout import settings as rollout
from ludus.settings import Idle, OneOf, Settings, with_overrides
from ludus.text.parse import PARSERS

_AREAL = "ludus.compat.areal.adapter:from_rollout_workflow"
_REALHF = "ludus.compat.realhf.adapter:from_queue"
_VERL = "ludus.compat.verl.adapter:from_loop"


class LoopSettings(Settings):
    """Keys for agent loops."""

    default_agent_loop: str | None = None
    """The agent loop of rows without `agent_name`. None: single_turn_agent."""
    agent_loop_config_path: str | None = None
    """YAML with further agent loops, by name. None: only those that code registers."""


class InlineSettings(rollout.InlineSettings, LoopSettings):
    """On a thread of this process."""


class SubprocSettings(rollout.SubprocSettings, LoopSettings):
    """Each episode in a process of its own, except for agent loops."""


AGENTS = {"inline": InlineSettings, "subproc": SubprocSettings, "online": rollout.OnlineSettings}


class RolloutSettings(rollout.RolloutSettings):
    """How episodes are played, including agent loops."""

    agent: Annotated[rollout.AgentSettings, OneOf(AGENTS, "inline")] = InlineSettings()
    prompt_length: int | None = pydantic.Field(default=None, ge=1)
    """Agent loops: most tokens of a row's prompt, tools included. None: limited by the context."""
    filter_overlong_prompts: bool = False
    """Agent loops: a row with a longer prompt is left out. False: its episodes fail."""
    response_length: int | None = pydantic.Field(default=None, ge=1)
    """Agent loops: most tokens after the prompt, of model, tools and users together. None: limited by the context."""
    multi_turn: MultiTurnSettings = MultiTurnSettings()

    def idle(self) -> Iterator[Idle]:
        yield from super().idle()
        if self.filter_overlong_prompts and self.prompt_length is None:
            yield Idle("filter_overlong_prompts", "prompt_length is not set")

    @pydantic.field_validator("agent", mode="before")
    @classmethod
    def _with_loops(cls, given: Any) -> Any:
        return _lifted(given, LoopSettings)


class Config(core.Config):
    """The configuration of one run, with an agent of any kind."""

    agent_kinds: ClassVar[Mapping[str, str]] = {"arun_episode": _AREAL, "collect_trajectory": _REALHF}
    processes: ClassVar[str] = "ludus.cluster.cluster:open_cluster"
    rollout: RolloutSettings = RolloutSettings()
    reward: RewardSettings = RewardSettings()

    @pydantic.model_validator(mode="before")
    @classmethod
    def _with_parser(cls, given: Any) -> Any:
        """verl's key for the format of tool calls sets the model's parser; one that code registers is the loop's."""
        wanted, model = _value_at(given, "rollout", "multi_turn", "format"), _value_at(given, "model") or {}
        if wanted in (None, "auto") or not isinstance(model, Mapping):
            return given
        parser = str(wanted).replace("-", "_")
        if parser not in PARSERS:
            return given
        if model.get("tool_parser", parser) != parser:
            raise ConfigError(
                f"rollout.multi_turn.format={wanted!r} and model.tool_parser={model['tool_parser']!r} say different "
                "things; leave one of them out"
            )
        return {**given, "model": {**model, "tool_parser": parser}}

    @pydantic.field_validator("rollout", mode="before")
    @classmethod
    def _with_guests(cls, given: Any) -> Any:
        return _lifted(given, RolloutSettings)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """As in the core; verl's names for keys are accepted too."""
        return cls.of(renamed(data))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """As in the core; settings given to `ludus run` override all values."""
        settings = overrides.settings()
        told = with_overrides(values, settings)
        if any(each.startswith("total_train_steps=") for each in settings):
            told.pop("total_train_epochs", None)  # who is told an end by steps does not end by epochs
        model = told.get("model")
        if isinstance(model, Mapping) and isinstance(path := model.get("path"), str):
            told["model"] = {**model, "path": overrides.model(path)}
        return super().of(told)

    @classmethod
    def hint_of(cls, unknown: str) -> str:
        """verl's key that ends so, and what it is here."""
        return hint(KEYS, unknown, "verl")

    def row_kind(self, rows: Sequence[Mapping[str, Any]]) -> str | None:
        """The kind of agent loops, if a key or the first row names one."""
        agent = self.rollout.agent
        named = (agent.default_agent_loop, agent.agent_loop_config_path) if isinstance(agent, LoopSettings) else ()
        is_named = any(name is not None for name in named)
        return _VERL if is_named or (len(rows) > 0 and rows[0].get("agent_name") is not None) else None

    def unread_by(self, kind: str | None) -> Mapping[str, str]:
        own = [f"rollout.agent.{name}" for name in LoopSettings.__annotations__]
        own += ["rollout.prompt_length", "rollout.filter_overlong_prompts", "rollout.response_length"]
        own += ["rollout.multi_turn", "reward"]
        return {} if kind == _VERL else {key: "agent loops" for key in own if self.is_set(key)}


def load_config(
    path: Path | str | None = None, overrides: Sequence[str] = (), *, config_class: str | None = None
) -> Config:
    """The configuration in a YAML file (None: the defaults) with `a.b=value` overrides; verl's names for keys are
    accepted too.

    config_class: import string of a dataclass that extends it, whose values are overridden by the file. None: the one
    that the file or an override names, if any.
    Raises UserError if the file or the class is missing, ConfigError for an unknown key or an invalid value.
    """
    return experiment.load_config(path, overrides, config_class=config_class, base=Config)


def _value_at(given: Any, *path: str) -> Any:
    """The value at `path` in nested mappings and settings. None: there is none."""
    for name in path:
        given = given.get(name) if isinstance(given, Mapping) else vars(given).get(name) if given is not None else None
    return given


def _lifted(given: Any, cls: type[Settings]) -> Any:
    """The core's settings as the subclass with the families' keys, none of which are set."""
    is_cores = isinstance(given, Settings) and not isinstance(given, cls)
    return given.model_dump(exclude_unset=True) if is_cores else given
