"""Tasks of reasoning-gym through its own data sets and scores."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("reasoning_gym")

from ludus.agents.environments.reasoning import ReasoningGymEnvironment, reasoning_gym_rows
from ludus.compat.realhf.text_agent import TextEnvironmentAgent
from ludus.errors import UserError


def test_rows_say_which_question_they_are():
    """The same seed gives the same rows, another seed others."""
    rows = reasoning_gym_rows("leg_counting", size=3, seed=4, max_animals=4)
    assert rows == reasoning_gym_rows("leg_counting", size=3, seed=4, max_animals=4)
    assert rows[0]["question"] != reasoning_gym_rows("leg_counting", size=3, seed=5, max_animals=4)[0]["question"]
    with pytest.raises(UserError, match="'leg_cuonting'"):
        reasoning_gym_rows("leg_cuonting", size=3, seed=4)
    with pytest.raises(UserError, match="no 'reasoning_gym'"):
        ReasoningGymEnvironment().for_episode({"question": "?"})


def test_one_answer_is_scored(play):
    """Through the agent that plays any environment; the task's own score is the reward."""
    row = reasoning_gym_rows("leg_counting", size=3, seed=4)[1]
    _, entry = asyncio.run(ReasoningGymEnvironment().for_episode(row)._find())
    kwargs = {"env": {"type_": "reasoning-gym"}}
    episode = play(TextEnvironmentAgent, [f"<answer>{entry['answer']}</answer>"], row, kwargs).episode
    assert (episode.outcome.kind, episode.metrics["success"]) == ("ok", 1.0)
    assert [span.kind for span in episode.spans] == ["tool", "reward", "tool"]
    episode = play(TextEnvironmentAgent, ["many"], row, kwargs).episode
    assert list(episode.rewards.values()) == [0.0] and episode.metrics["success"] == 0.0
