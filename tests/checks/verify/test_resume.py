"""The resume check runs `ludus train` as a user does, and kills it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.checks.verify.resume import verify_resume
from ludus.errors import UserError


def test_a_killed_run_goes_on_exactly(tiny_model_folder: Path) -> None:
    """Killed in the middle of step 2 of 3, the resumed run has every token and ends with the same weights."""
    result = verify_resume(kill_at_step=2, steps=3, model=str(tiny_model_folder), seed=1)
    assert result.tokens_before_kill > 0 and result.tokens_lost == 0
    assert result.steps_resumed == 3 and 0 <= result.tokens_recalled <= result.tokens_before_kill
    assert result.weights_equal and result.ok


def test_a_killed_run_goes_on_with_its_critic(tiny_model_folder: Path) -> None:
    """PPO: both models, their masters and moments end at equal bits."""
    result = verify_resume(kill_at_step=2, steps=3, model=str(tiny_model_folder), algorithm="ppo")
    assert result.ok and (result.algorithm, result.ranks) == ("ppo", 1)


def test_a_step_the_run_does_not_have_is_named() -> None:
    """Killing after the end is refused before anything runs."""
    with pytest.raises(UserError, match="--kill-at-step 9 is not a step of this run"):
        verify_resume(kill_at_step=9, steps=3, model="smollm2-135m", seed=0)
