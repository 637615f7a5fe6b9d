"""Tasks of reasoning-gym through its own data sets and scores."""

from __future__ import annotations

import pytest

pytest.importorskip("reasoning_gym")

from ludus.agents.environments.reasoning import ReasoningGymEnvironment, reasoning_gym_rows
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
