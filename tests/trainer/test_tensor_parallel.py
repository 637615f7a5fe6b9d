"""Layers cut over ranks: what a trainer computes with `trainer.tensor_parallel` is what one process computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from ludus.algorithms.pack import Batch
from ludus.errors import UserError
from ludus.models import shards
from ludus.models.groups import RankGroups
from ludus.models.load import load_model, save_model
from ludus.models.settings import ModelSettings
from ludus.models.tensor_parallel import check_layers, sum_gradient
from tests.trainer.teams import Team, batch, relative_difference, sharded, weights, whole


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = Team()
    yield team
    team.end()


def long_batch() -> Batch:
    return batch(row_tokens=200)


@pytest.mark.parametrize(
    ("family", "lora", "size", "split"),
    [
        ("llama", None, 2, {"tensor": 2}),
        ("llama_4_key_heads", None, 4, {"tensor": 4}),
        ("qwen3", None, 4, {"tensor": 2}),  # norms of heads
        ("qwen2", None, 2, {"tensor": 2}),  # biases
        ("gemma2", None, 2, {"tensor": 2}),  # windows, norms after attention
        ("llama", 3, 4, {"tensor": 2}),  # three rows over two ranks
        ("llama", None, 4, {"tensor": 2, "context": 2}),
    ],
)
def test_the_gradient_of_cut_layers_is_that_of_whole_ones(
    team: Team, tiny_models: Any, family: str, lora: int | None, size: int, split: dict[str, int]
) -> None:
    """Alone, beside other rows and with rows cut once more; of all weights and of adapters: equal to 1e-5 in fp32."""
    folder = tiny_models(family)
    alone = whole(folder, lora=lora)
    if lora is not None:  # the second matrices of adapters begin at 0, where half of the gradient would be 0 too
        alone.train_batch(long_batch())
    expected = alone.forward_backward(long_batch())
    gradients = dict(alone.optimizer.gradients())
    with sharded(team, folder, size, lora=lora, split=split) as trainer:
        if lora is not None:
            trainer.train_batch(long_batch())
        seen = trainer.forward_backward(long_batch())
        got = {name: trainer.gradient(name) for name in gradients}
    assert relative_difference(got, gradients) <= 1e-5
    assert seen == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("lora", "settings"),
    [
        (None, {"optimizer": {"lr": 1e-2, "max_grad_norm": 0.01, "weight_decay": 0.1}}),
        (None, {"activation_checkpointing": True, "algorithm": {"kl": {"beta": 0.1}}, "minibatches": 2}),
        (4, {"optimizer": {"lr": 1e-2, "max_grad_norm": 0.01}}),
    ],
)
def test_a_run_on_cut_layers_is_a_run_on_whole_ones(
    team: Team, tiny_model_folder: Path, lora: int | None, settings: dict[str, Any]
) -> None:
    """Losses, norms and weights of steps, and scores; what several ranks keep is counted once in the norm."""
    minibatches = settings.pop("minibatches", 1)
    parts = Batch(tuple(long_batch().rows[start::minibatches] for start in range(minibatches)), version=0)
    alone = whole(tiny_model_folder, lora=lora, **settings)
    made = []
    with sharded(team, tiny_model_folder, 4, lora=lora, split={"tensor": 2}, **settings) as trainer:
        for each in (alone, trainer):
            curve = []
            for _ in range(3):
                curve.append(each.train_batch(parts))
                each.publish().copy_into_shared()
            made.append((curve, weights(each), each.score([range(20, 220)])[0]))
    (expected, last, scores), (curve, got_last, got_scores) = made
    for left, right in zip(curve, expected, strict=True):
        assert left == pytest.approx(right, rel=2e-4, abs=1e-5)
    assert relative_difference(got_last, last) <= 1e-4
    assert got_scores == pytest.approx(scores, abs=1e-3)


@pytest.mark.parametrize(("lora", "dtype"), [(None, "float32"), (3, "float32"), (None, "bfloat16")])
def test_a_checkpoint_does_not_know_how_layers_were_cut(
    team: Team, tiny_model_folder: Path, tmp_path: Path, lora: int | None, dtype: str
) -> None:
    """Two times two ranks go on from what one process saved, and it from theirs, with every bit; what is published,
    rounded to bf16 too, is equal to the bit."""
    settings: dict[str, Any] = {"lora": lora, "dtype": dtype}
    with sharded(team, tiny_model_folder, 4, split={"tensor": 2}, **settings) as trainer:
        trainer.train_batch(long_batch())
        trainer.save(tmp_path / "cut")
        trainer.publish().copy_into_shared()
        first = weights(trainer)
        trainer.train_batch(long_batch())
        second = weights(trainer)
    alone = whole(tiny_model_folder, **settings)
    alone.load(tmp_path / "cut")
    assert all(torch.equal(each, first[name]) for name, each in weights(alone).items())
    alone.save(tmp_path / "whole")
    with sharded(team, tiny_model_folder, 4, split={"tensor": 2}, **settings) as trainer:
        trainer.load(tmp_path / "whole")
        assert all(torch.equal(each, first[name]) for name, each in weights(trainer).items())
        trainer.train_batch(long_batch())
        assert all(torch.equal(each, second[name]) for name, each in weights(trainer).items())


def test_weights_of_a_saved_model_are_taken_in_parts(team: Team, tiny_model_folder: Path, tmp_path: Path) -> None:
    """Each rank reads its own, and what it writes is the whole model again."""
    alone = whole(tiny_model_folder)
    alone.train_batch(long_batch())
    alone.publish().copy_into_shared()
    save_model(alone.model, tmp_path / "alone")
    with sharded(team, tiny_model_folder, 2, split={"tensor": 2}) as trainer:
        trainer.take_weights(tmp_path / "alone")
        assert relative_difference(weights(trainer), weights(alone)) == 0
        trainer.export(tmp_path / "cut")
    again = whole(tmp_path / "cut")
    assert relative_difference(weights(again), weights(alone)) == 0


def test_a_rank_keeps_its_part_alone(team: Team, tiny_model_folder: Path) -> None:
    """Of weights and masters half, but for norms, of which each rank has all."""
    with sharded(team, tiny_model_folder, 2, split={"tensor": 2}) as trainer:
        trainer.train_batch(long_batch())
        model, masters = trainer.model, trainer._trainer.optimizer.masters
        total = sum(each.numel() for each in model.trainable.values())
        assert sum(each.numel() for each in masters.values()) <= 0.51 * total
        assert masters["model.layers.0.self_attn.o_proj.weight"].shape == (64, 32)
        assert masters["model.layers.0.self_attn.q_proj.weight"].shape == (32, 64)


@pytest.mark.parametrize(
    ("family", "size", "says"),
    [
        ("llama", 4, r"has 4 over 2 key heads; set a number that divides 2"),
        ("gpt_oss", 2, r"its layers have a self_attn\.sinks of shape \(4,\)"),
        ("minimax_m2", 2, r"its layers have a .* trainer\.context_parallel cuts the rows of any model"),
    ],
)
def test_what_cannot_be_cut_is_refused_by_name(tiny_models: Any, family: str, size: int, says: str) -> None:
    """Before anything is cut; the error names what would do."""
    model = load_model(ModelSettings(path=str(tiny_models(family)), dtype="float32"), is_mapped=True)
    with pytest.raises(UserError, match=says):
        check_layers(model, size)


def test_layers_are_cut_one_by_one(tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each just before its rows are shared out: of a large model a card has no room for the parts of all layers."""
    model = load_model(ModelSettings(path=str(tiny_model_folder), dtype="float32"), is_mapped=True)
    num_cut: list[int] = []

    def share(part: Any, **_: Any) -> None:
        num_cut.append(sum(any(isinstance(each, DTensor) for each in layer.parameters()) for layer in model.layers))
        part.set_gradient_divide_factor = part.set_force_sum_reduction_for_comms = lambda _: None

    monkeypatch.setattr(shards, "fully_shard", share)
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        shards.shard_model(model, RankGroups.form(torch.device("cpu"), 2, tensor=2))
    finally:
        torch.distributed.destroy_process_group()
    assert num_cut == [*range(1, len(model.layers) + 1), len(model.layers)]


def test_gradients_of_what_each_rank_has_whole_are_summed_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to 1 each of three others' would be lost in bf16; what they were made of does not change."""

    def add_others(total: Tensor, group: Any) -> None:
        for _ in range(3):
            total += 2**-9

    monkeypatch.setattr(torch.distributed, "all_reduce", add_others)
    weight, grad = torch.zeros(4, dtype=torch.bfloat16, requires_grad=True), torch.ones(4, dtype=torch.bfloat16)
    sum_gradient(weight, group=cast(Any, None)).backward(grad)
    assert weight.grad is not None and weight.grad.tolist() == [1 + 2**-7] * 4
    assert grad.tolist() == [1.0] * 4
