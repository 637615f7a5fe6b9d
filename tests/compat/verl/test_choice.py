"""Which agent plays, and which keys of the configuration act on it."""

from __future__ import annotations

from typing import Any

import pytest

from ludus.api.agent import choose_agent
from ludus.compat.config import load_config
from ludus.compat.verl.adapter import LoopAdapter
from ludus.compat.verl.resources import loop_config
from ludus.compat.verl.single import SingleTurnAgentLoop
from ludus.errors import ConfigError, UserError


async def plain(data: dict[str, Any]) -> float:
    return 1.0


def test_loops_are_played_where_something_names_one() -> None:
    """The configuration, or the rows; without either there is no agent."""
    assert isinstance(choose_agent(load_config(None, ["rollout.agent.default_agent_loop=tool_agent"])), LoopAdapter)
    agent_adapter = choose_agent(load_config(), rows=[{"agent_name": "tool_agent"}])
    assert isinstance(agent_adapter, LoopAdapter) and agent_adapter.name == "SingleTurnAgentLoop"
    with pytest.raises(ConfigError, match=r"no agent was given.*rollout\.agent\.default_agent_loop"):
        choose_agent(load_config(), rows=[{"question": "?"}])


def test_an_agent_that_is_given_plays_the_rows_itself() -> None:
    assert choose_agent(load_config(), plain, rows=[{"agent_name": "tool_agent"}]).name == "plain"
    agent_adapter = choose_agent(load_config(None, ["workflow=ludus.compat.verl:ToolAgentLoop"]))
    assert isinstance(agent_adapter, LoopAdapter) and agent_adapter.name == "ToolAgentLoop"


def test_an_unknown_default_is_named() -> None:
    with pytest.raises(UserError, match="no agent loop 'tool_agnt'; did you mean 'tool_agent'"):
        choose_agent(load_config(None, ["rollout.agent.default_agent_loop=tool_agnt"]))


@pytest.mark.parametrize(
    "override",
    [
        "rollout.agent.default_agent_loop=tool_agent",
        "rollout.prompt_length=8",
        "rollout.response_length=8",
        "rollout.multi_turn.max_user_turns=2",
        "reward.custom_reward_function.path=score.py",
    ],
)
def test_keys_of_loops_do_not_act_on_other_agents(override: str, caplog: pytest.LogCaptureFixture) -> None:
    choose_agent(load_config(None, [override]), plain)
    assert "does not act: agent loops alone read it, and plain is none" in caplog.text


def test_loops_play_in_this_process(caplog: pytest.LogCaptureFixture) -> None:
    settings = ["rollout.agent.default_agent_loop=tool_agent", "rollout.agent.mode=subproc"]
    choose_agent(load_config(None, settings))
    assert "rollout.agent.mode does not act: agents of this kind ask the model by tokens" in caplog.text
    choose_agent(load_config(None, ["rollout.agent.mode=subproc"]), SingleTurnAgentLoop)
    assert len(caplog.messages) == 2


def test_a_loop_reads_the_configuration_under_the_names_it_knows() -> None:
    settings = ["gconfig.n_samples=4", "eval_gconfig.temperature=0", "rollout.response_length=99", "model.path=m"]
    config = loop_config(load_config(None, settings))
    rollout = config.actor_rollout_ref.rollout
    assert (rollout.n, rollout.response_length, rollout.val_kwargs.temperature) == (4, 99, 0)
    assert config.actor_rollout_ref.model.path == "m" and config.data.max_response_length == 99
