"""What a plan fills into the configuration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ludus.api.plan import with_decay_end
from ludus.config import load_config


def test_rates_fall_over_the_steps_that_have_one() -> None:
    """While a critic warms up the policy waits: its rate is 0 after the last step, not a quarter of the first."""
    plan: Any = SimpleNamespace(total_steps=80)
    alone = load_config(None, ["trainer.optimizer.decay=linear"])
    assert with_decay_end(alone, plan).trainer.optimizer.total_steps == 80
    decays = ("trainer.optimizer.decay=linear", "critic.optimizer.decay=linear")
    ended = with_decay_end(load_config(None, ["algorithm.name=ppo", "critic.warmup_steps=20", *decays]), plan)
    assert (ended.trainer.optimizer.total_steps, ended.critic.optimizer.total_steps) == (60, 80)
    given = ["algorithm.name=ppo", "critic.warmup_steps=20", decays[0], "trainer.optimizer.total_steps=60"]
    assert with_decay_end(load_config(None, given), plan).trainer.optimizer.total_steps == 60  # counted likewise
