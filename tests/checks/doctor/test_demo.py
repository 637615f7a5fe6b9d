"""The demo's expected time: by what its products take here, in the demo's own numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ludus.checks.doctor.demo import DemoSpeed, measure_demo
from ludus.compat.config import load_config


def test_training_and_sampling_add_up() -> None:
    """Twice as slow products take twice as long; what does not fit into the demo's ten minutes is counted in steps."""
    quick = DemoSpeed(0.02, 0.02)
    assert quick.seconds == pytest.approx(quick.train_s + quick.sample_s)
    assert DemoSpeed(0.04, 0.02).train_s == pytest.approx(2 * quick.train_s)
    assert DemoSpeed(0.02, 0.04).sample_s == pytest.approx(2 * quick.sample_s)
    assert DemoSpeed(0.001, 0.001).steps == 80 and "for its 80 steps" in DemoSpeed(0.001, 0.001).words
    slow = DemoSpeed(0.5, 0.5)
    assert 0 < slow.steps < 80 and slow.steps / 80 == pytest.approx(600 / slow.seconds, abs=0.02)
    assert f"about {slow.steps} of its 80 steps in its 10 minutes" in slow.words


def test_it_is_the_recipes_own_limits() -> None:
    """The numbers are those of the demo's configuration."""
    config = load_config(Path(__file__).parents[3] / "recipes/guess/run.yaml")
    assert (config.total_train_steps, config.total_train_seconds) == (80, 600)
    assert config.trainer.row_tokens == 512


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_measured(dtype: torch.dtype) -> None:
    speed = measure_demo(dtype)
    assert speed.product_s > 0 and speed.token_s > 0
