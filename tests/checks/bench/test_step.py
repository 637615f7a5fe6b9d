"""Our whole step measured on a tiny model."""

from __future__ import annotations

from ludus.algorithms.settings import AlgorithmSettings
from ludus.checks.bench.step import measure_step, step_config, sum_reward
from ludus.checks.bench.workloads import StepWork


def test_every_step_has_a_line(small_step: StepWork) -> None:
    """The real loop runs, and tells seconds and reward of each step; its parts are within the whole."""
    lines = measure_step(small_step)["steps"]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert 0 < line["rollout_s"] + line["train_s"] + line["publish_s"] <= line["seconds"]
        assert 0.0 <= line["reward"] <= 1.0


def test_settings_are_those_of_the_peer(small_step: StepWork) -> None:
    """Groups, samples, lengths and the optimizer are the work's; the learning rate falls to 0 as TRL's does."""
    config = step_config(small_step, "runs")
    assert (config.train_dataset.batch_size, config.gconfig.n_samples, config.gconfig.max_new_tokens) == (2, 2, 4)
    optimizer = config.trainer.optimizer
    assert (optimizer.lr, optimizer.betas, optimizer.decay) == (1e-5, (0.9, 0.999), "linear")
    assert (optimizer.max_grad_norm, optimizer.weight_decay) == (1.0, 0.0)
    assert config.algorithm == AlgorithmSettings()


def test_the_last_number_is_the_answer() -> None:
    """Text around it, and numbers before it, do not matter."""
    assert sum_reward("3 plus 4 is 7.", "7") == 1.0
    assert sum_reward("7, or is it 8?", "7") == 0.0
    assert sum_reward("seven", "7") == 0.0
    assert sum_reward("It is -7", "7") == 0.0
