"""Our training measured on a tiny model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ludus.checks.bench.train import measure_memory, measure_train, num_parameters, training_config, training_step
from ludus.checks.bench.workloads import MemoryWork, TrainWork
from ludus.engines.lease import ComputeLease
from ludus.models.load import load_model
from ludus.trainer.step import ModelTrainer


def test_results_of_training(small_train: TrainWork) -> None:
    """So many steps are timed as are asked for, beside the matrix rate and the peak of memory; 6
    operations a weight and token are a share of that rate, where all of the work is in products of whole weights."""
    results = measure_train(small_train)
    assert len(results["steps_s"]) == 2
    assert min(results["tokens_per_s"], results["matrix_gflops_per_s"], results["peak_mb"]) > 0
    flops_per_s = 6 * num_parameters(load_model(training_config(small_train).model)) * results["tokens_per_s"]
    assert results["ceiling_share"] == pytest.approx(flops_per_s / results["matrix_gflops_per_s"] / 1e9)
    assert measure_train(replace(small_train, kind="group", shared_tokens=24))["ceiling_share"] is None


@pytest.mark.parametrize(("kind", "moves"), [("dense", True), ("group", False)])
def test_the_optimizer_acts_in_dense_work_alone(small_train: TrainWork, kind: str, moves: bool) -> None:
    """dense: masters move and are published. group: gradients are made and forgotten."""
    work = replace(small_train, kind=kind, shared_tokens=24)
    config = training_config(work)
    model = load_model(config.model)
    trainer = ModelTrainer(model, config.trainer, config.algorithm, lease=ComputeLease())
    before = model.head_weight.detach().clone()
    assert training_step(trainer, work)() > 0
    assert bool((model.head_weight != before).any()) is moves
    assert trainer.version == int(moves) and not trainer.optimizer.gradients()


def test_settings_of_the_work_reach_the_trainer(small_train: TrainWork) -> None:
    """LoRA and checkpointing are settings of the run; what is counted as weights is what tokens are multiplied with."""
    config = training_config(replace(small_train, lora_rank=4, checkpointing=True))
    assert config.model.lora is not None and config.model.lora.rank == 4
    assert config.trainer.activation_checkpointing
    model = load_model(training_config(small_train).model)
    assert num_parameters(model) == sum(parameter.numel() for parameter in model.trainable.values())


def test_memory_is_watched_over_steps_of_all_sizes(small_train: TrainWork) -> None:
    """A slope in MB a step, and points of the curve."""
    work = MemoryWork(small_train.model, small_train.overrides, vocab_size=300, steps=5)
    figures = measure_memory(work)
    assert len(figures["rss_mb"]) == 5 and figures["peak_mb"] >= max(figures["rss_mb"]) - 1
    assert abs(figures["slope_mb_per_step"]) < 100
