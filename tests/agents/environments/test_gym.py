"""Environments in Gymnasium's style, old and new, blocking and not."""

from __future__ import annotations

import asyncio

import pytest

from ludus.agents.environments.gym import GymEnvironment
from ludus.errors import UserError


class Door3:
    """Text in, text out: the door with the row's number opens."""

    def __init__(self, reward=1.0):
        self.reward, self.is_closed = reward, False

    def reset(self, seed=None, options=None):
        self.right, self.left = str(options["door"]), 2
        return f"Which door? (seed {seed})", {}

    def step(self, action):
        self.left -= 1
        is_right = action.strip() == self.right
        return "No.", self.reward * is_right, is_right, self.left == 0, {"success": is_right}

    def close(self):
        self.is_closed = True


class Counter:
    """The interface before Gymnasium, with a discrete space."""

    class action_space:  # noqa: N801
        n = 3

    def reset(self):
        self.total = 0
        return {"total": 0}

    def step(self, action):
        self.total += action
        return {"total": self.total}, action, self.total >= 4, {}


ROW = {"seed": 7, "door": 3}


def run(env, *actions):
    async def go():
        played = env.for_episode(ROW)
        seen = [await played.reset()]
        for action in actions:
            seen.append(await played.step(action))
        await played.close()
        return seen

    return asyncio.run(go())


def test_the_older_interface():
    """Observations without information, four values of a step, a discrete space."""
    assert run(GymEnvironment(Counter), "I take 2", "7", "2") == [
        ('{"total": 0}', {}),
        ('{"total": 2}', 2.0, False, False, {}),
        (
            "That is no action. Write one number from 0 to 2, and nothing else.",
            0.0,
            False,
            False,
            {"invalid_action": True},
        ),
        ('{"total": 4}', 2.0, True, False, {}),
    ]


def test_actions_and_observations_in_ones_own_words():
    """read_action may refuse by ValueError, which the model reads; show makes the text."""
    env = GymEnvironment(Counter, None, lambda text: {"one": 1, "two": 2}[text], lambda seen: f"now {seen['total']}")
    assert [item[0] for item in run(env, "two", "one")] == ["now 0", "now 2", "now 3"]


def test_gymnasium_by_its_id():
    """A registered environment, with its arguments; arrays become lists."""
    pytest.importorskip("gymnasium")
    seen = run(GymEnvironment("FrozenLake-v1", {"is_slippery": False}), "right: 2")
    assert [item[0] for item in seen] == ["0", "1"]
    (observation, _), *_ = run(GymEnvironment("CartPole-v1"))
    assert observation.startswith("[") and observation.count(",") == 3


def test_actions_of_several_numbers():
    """A list as JSON, of the space's own type and within its bounds."""
    pytest.importorskip("gymnasium")
    env = GymEnvironment("Pendulum-v1")
    refused, wide, taken = run(env, "left", "I push [9.5]", "I push [0.5]")[1:]
    assert "as JSON" in refused[0] and refused[4] == wide[4] == {"invalid_action": True}
    assert taken[0].startswith("[") and taken[1] < 0.0


def test_environments_that_await():
    """An asynchronous environment is awaited, not run on a thread."""

    class Awaits(Door3):
        async def reset(self, *, seed=None, options=None):
            return super().reset(seed, options)

        async def step(self, action):
            return super().step(action)

    assert run(GymEnvironment(Awaits), "3")[1][1:3] == (1.0, True)


def test_what_cannot_be_played_is_named():
    """An environment that nobody made, a step before the first reset."""
    with pytest.raises(UserError, match="pass an id of Gymnasium"):
        GymEnvironment(3)
    with pytest.raises(UserError, match="before its first step"):
        asyncio.run(GymEnvironment(Door3).step("1"))
