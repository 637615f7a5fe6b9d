"""A dataclass of the user's own extends the configuration: whose keys are whose, and what is made of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ludus.api.agent import choose_agent
from ludus.api.experiment import ExperimentConfig, open_experiment
from ludus.compat.config import load_config
from ludus.compat.realhf.abstraction import AgentAbstraction, EnvServiceAbstraction
from ludus.compat.realhf.math_experiment import AsyncPPOMATHConfig, AsyncPPOMATHMultiTurnConfig, AsyncRLExperimentConfig
from ludus.config import check_training
from ludus.errors import ConfigError, UserError


@dataclasses.dataclass
class Inner:
    depth: int = 2


@dataclasses.dataclass
class Mine(ExperimentConfig):
    """Its own parameters, another default of a key, and settings that follow."""

    my_param: float = 1.0
    inner: Inner = dataclasses.field(default_factory=Inner)
    total_train_steps: int = 7

    @property
    def agent(self) -> AgentAbstraction:
        return AgentAbstraction("null", {"episode_length": self.inner.depth})

    @property
    def env(self) -> EnvServiceAbstraction:
        return EnvServiceAbstraction("null")

    def settings(self) -> dict[str, Any]:
        return {"gconfig": {"temperature": 0.5 * self.my_param, "n_samples": 4}}


@dataclasses.dataclass
class Plain:
    """Without any base class; it needs a value."""

    length: int

    @property
    def agent(self) -> AgentAbstraction:
        return AgentAbstraction("null", {"episode_length": self.length})


@dataclasses.dataclass
class SeedConfig(AsyncRLExperimentConfig):
    """As the originals' guide writes one."""

    my_param: float = 1.0

    @property
    def agent(self) -> AgentAbstraction:
        return AgentAbstraction("math-multi-turn", args=dict(turn_level_discount=self.my_param))  # noqa: C408

    @property
    def env(self) -> EnvServiceAbstraction:
        return EnvServiceAbstraction("math-code-single-step", args=dict(dataset_path=self.dataset.path))  # noqa: C408


class NoDataclass:
    agent = None


def ref(cls: type) -> str:
    return f"{__file__}:{cls.__qualname__}"


def test_values_stand_in_order():
    """Fields and settings of the class, then the file, then overrides; own parameters are kept with the run."""
    config = load_config(None, ["my_param=2", "gconfig.n_samples=6"], config_class=ref(Mine))
    assert (config.total_train_steps, config.gconfig.temperature, config.gconfig.n_samples) == (7, 1.0, 6)
    assert config.config_kwargs == {"my_param": 2} and config.config_class == ref(Mine)
    assert load_config(None, ["total_train_steps=3"], config_class=ref(Mine)).total_train_steps == 3


def test_a_run_can_be_read_again(tmp_path):
    """The saved configuration names the class and its parameters; overrides of these still act."""
    path = tmp_path / "config.yaml"
    path.write_text(load_config(None, ["my_param=2"], config_class=ref(Mine)).to_yaml())
    again = load_config(path)
    assert again.config_kwargs == {"my_param": 2} and again.gconfig.temperature == 1.0
    assert load_config(path, ["my_param=3"]).config_kwargs == {"my_param": 3}
    path.write_text(f"config_class: '{ref(Mine)}'\ninner: {{depth: 5}}\n")
    assert choose_agent(load_config(path))._agent.episode_length == 5


def test_the_object_has_its_parameters_and_every_key():
    """With their types; keys of the configuration are attributes."""
    config = load_config(None, ["my_param=5", "inner.depth=3", "seed=9"], config_class=ref(Mine))
    mine = open_experiment(config)
    assert (mine.my_param, type(mine.my_param), mine.inner) == (5.0, float, mine.inner)
    assert mine.inner.depth == 3 and (mine.seed, mine.model.path, mine.total_train_steps) == (9, "smollm2-135m", 7)
    assert choose_agent(config).name == "NullAgent"
    with pytest.raises(AttributeError, match="no parameter 'nothing'"):
        _ = mine.nothing


def test_a_class_without_a_base():
    """Its fields, and the property `agent`; an environment only where the agent needs one."""
    assert choose_agent(load_config(None, ["length=2"], config_class=ref(Plain)))._agent.episode_length == 2
    with pytest.raises(ConfigError, match="needs a value for 'length'"):
        load_config(None, [], config_class=ref(Plain))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["my_parm=1"], "unknown key 'my_parm'; did you mean 'my_param'"),
        (["my_param=much"], "my_param='much' is not possible"),
        (["inner.dept=1"], "unknown key 'inner.dept'; did you mean 'inner.depth'"),
        (["gconfig.temprature=1"], "did you mean 'gconfig.temperature'"),
        (["workflow=x:y"], "both name an agent"),
    ],
)
def test_wrong_keys_are_named(overrides, message):
    """Those of the class and those of the configuration."""
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides, config_class=ref(Mine))


def test_what_is_no_such_class_is_named():
    """A class without @dataclass, one that has no agent, one that is not there."""
    with pytest.raises(ConfigError, match="must be a class with @dataclass"):
        load_config(None, [], config_class=ref(NoDataclass))
    with pytest.raises(ConfigError, match="must have a property `agent`"):
        load_config(None, [], config_class=ref(Inner))
    with pytest.raises(UserError, match="has no 'Missing'"):
        load_config(None, [], config_class=f"{__file__}:Missing")


def test_the_guide_of_the_originals(tmp_path):
    """my_param reaches the agent, dataset.path the environment; old names of keys are understood."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"query_id": "a", "prompt": "1+1", "solutions": ["2"]}\n')
    keys = ["my_param=0.5", f"dataset.path={rows}", "actor.path=m", "max_head_offpolicyness=2", "experiment_name=x"]
    config = load_config(None, keys, config_class=ref(SeedConfig))
    assert (config.train_dataset.path, config.model.path, config.rollout.max_head_offpolicyness) == (str(rows), "m", 2)
    assert config.rollout.stale_tokens == "train"
    assert config.name == "x" and config.config_kwargs == {"my_param": 0.5}
    agent_adapter = choose_agent(config)
    assert agent_adapter._agent.turn_level_discount == 0.5 and list(agent_adapter._env.id2info) == ["a"]


def test_the_ready_made_ones(tmp_path, tiny_models):
    """A bundle is the group, so a row is played once; turn by turn it is played as often as others."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"query_id": "a", "prompt": "1+1", "solutions": ["2"]}\n')
    model = tiny_models("llama")
    keys = [f"dataset.path={rows}", f"actor.path={model}", "total_train_steps=1"]
    single = load_config(
        None,
        [*keys, "group_size=4", "success_rate_ub=0.9"],
        config_class=f"{AsyncPPOMATHConfig.__module__}:AsyncPPOMATHConfig",
    )
    check_training(single)
    assert (single.gconfig.n_samples, single.rollout.min_members) == (1, 1)
    agent = choose_agent(single)._agent
    assert (agent.gconfig.n, agent.success_rate_ub) == (4, 0.9)
    turns = load_config(
        None,
        [*keys, "num_turns=2", "ppo.gen.temperature=0.7", "ppo.reward_output_scaling=5"],
        config_class=f"{AsyncPPOMATHConfig.__module__}:{AsyncPPOMATHMultiTurnConfig.__qualname__}",
    )
    agent = choose_agent(turns)._agent
    assert turns.gconfig.n_samples == 8 and (agent.num_turns, agent.reward_scaling) == (2, 5.0)
    assert agent.gconfig.temperature == 0.7


def test_groups_of_one_episode_are_asked_for_by_name():
    """One member is enough where it holds a group by itself, which is said by two keys; otherwise it is an error."""
    keys = ["total_train_steps=1", "gconfig.n_samples=1"]
    with pytest.raises(ConfigError, match=r"rollout.min_members=1"):
        check_training(load_config(None, keys))
    check_training(load_config(None, [*keys, "rollout.min_members=1"]))
    with pytest.raises(ConfigError, match="leave_one_out"):
        check_training(load_config(None, [*keys, "rollout.min_members=1", "algorithm.name=rloo"]))
