"""The agent that plays any environment in text."""

from __future__ import annotations

import asyncio

import pytest

from ludus.agents.environments.gym import GymEnvironment
from ludus.agents.environments.reasoning import ReasoningGymEnvironment, reasoning_gym_rows
from ludus.agents.kinds import resolve_workflow
from ludus.compat.realhf.text_agent import TextEnvironmentAgent
from ludus.errors import UserError
from tests.agents.environments.test_gym import ROW, Door3


def test_an_episode_in_text(play):
    """The first observation opens the conversation, the next ones answer; rewards are discounted to returns."""
    kwargs = {"env": GymEnvironment(Door3, {"reward": 2.0}), "turn_level_discount": 0.5, "system_prompt": "Guess."}
    played = play(TextEnvironmentAgent, ["1", "3"], ROW, kwargs)
    episode, text = played.episode, played.text
    assert episode.outcome.kind == "ok", episode.outcome.reason
    assert list(episode.rewards.values()) == [1.0, 2.0]
    assert episode.metrics == {"return": 2.0, "num_turns": 2.0, "success": 1.0}
    assert text.tokenizer.decode(played.engine.calls[1].prompt_ids) == (
        "<|im_start|>system\nGuess.<|im_end|>\n<|im_start|>user\nWhich door? (seed 7)<|im_end|>\n"
        "<|im_start|>assistant\n1<|im_end|>\n<|im_start|>user\nNo.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [turn.fork for turn in episode.session.turns] == [None, None]


def test_an_episode_ends_with_the_environment_or_its_turns(play):
    """Cut by the environment after two, by the agent after one."""
    assert len(play(TextEnvironmentAgent, ["1", "2"], ROW, {"env": GymEnvironment(Door3)}).episode.rewards) == 2
    kwargs = {"env": GymEnvironment(Door3), "max_turns": 1}
    assert len(play(TextEnvironmentAgent, ["1"], ROW, kwargs).episode.rewards) == 1


def test_what_cannot_be_played_is_named():
    """No turn at all."""
    with pytest.raises(UserError, match="max_turns=0"):
        resolve_workflow(TextEnvironmentAgent, {"max_turns": 0})


def test_environments_are_registered():
    """Configurations name agent and environment."""
    env = {"type_": "gym", "args": {"env": f"{Door3.__module__}:Door3"}}
    assert resolve_workflow(TextEnvironmentAgent, {"env": env}).name == "TextEnvironmentAgent"


def test_one_answer_of_a_task_is_scored(play):
    """A task of reasoning-gym; the task's own score is the reward."""
    pytest.importorskip("reasoning_gym")
    row = reasoning_gym_rows("leg_counting", size=3, seed=4)[1]
    _, entry = asyncio.run(ReasoningGymEnvironment().for_episode(row)._find())
    kwargs = {"env": {"type_": "reasoning-gym"}}
    episode = play(TextEnvironmentAgent, [f"<answer>{entry['answer']}</answer>"], row, kwargs).episode
    assert (episode.outcome.kind, episode.metrics["success"]) == ("ok", 1.0)
    assert [span.kind for span in episode.spans] == ["tool", "reward", "tool"]
    episode = play(TextEnvironmentAgent, ["many"], row, kwargs).episode
    assert list(episode.rewards.values()) == [0.0] and episode.metrics["success"] == 0.0
