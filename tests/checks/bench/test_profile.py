"""Own times of calls, added up by part."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ludus.checks.bench.profile import OTHER, SAMPLING, TRAINING, ProfileRules, own_seconds
from ludus.checks.bench.sample import profile_sample
from ludus.checks.bench.train import profile_train
from ludus.checks.bench.workloads import SampleWork, TrainWork

PRODUCTS = "embedding and linear products"


@dataclass
class Call:
    """A call as torch's profiler records it."""

    name: str
    duration_time_ns: int
    children: Sequence[Call] = ()
    start_tid: int = field(default=1)


def test_every_call_counts_once_in_the_first_part_that_fits() -> None:
    """A product inside the sampler is the head's; what nobody knows is other; all adds up to the whole."""
    parts = ProfileRules(
        {"draw": "sampler", "product": "^mm$"}, (("head", "draw product"), ("draw", "draw"), ("mm", "product"))
    )
    tree = Call("step", 100, [Call("sampler.py: draw", 60, [Call("mm", 50)]), Call("model", 30, [Call("mm", 10)])])
    own_s = own_seconds([tree], parts)
    assert {part: round(taken_s * 1e9) for part, taken_s in own_s.items()} == {
        "head": 50, "draw": 10, "mm": 10, OTHER: 30
    }  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "names", "part"),
    [
        (
            SAMPLING,
            ["ludus/engines/local/core.py(1): step", "ludus/engines/local/scheduler.py(9): plan_step"],
            "scheduling",
        ),
        (SAMPLING, ["ludus/engines/local/runner.py(1): run", "aten::linear", "aten::mm"], PRODUCTS),
        (SAMPLING, ["ludus/models/fused_layers.py(1): forward", "ludus/kernels/linear.py(1): linear"], PRODUCTS),
        (SAMPLING, ["nn.Module: LlamaModel_0", "ludus/engines/local/kernels/native.py(1): attend"], "attention"),
        (SAMPLING, ["ludus/engines/local/sampler.py(1): draw", "aten::mm"], "head"),
        (SAMPLING, ["ludus/engines/local/engine.py(1): _deliver", "asyncio/base_events.py(1): call_soon"], "delivery"),
        (TRAINING, ["ludus/trainer/head.py(1): __call__", "aten::mm"], "head"),
        (TRAINING, ["<built-in method run_backward>", "aten::mm"], "embedding and linear products, backward"),
        (TRAINING, ["<built-in method run_backward>", "trainer/optimizer.py(1): add_gradient"], "gradients gathered"),
        (TRAINING, ["ludus/trainer/optimizer.py(1): step", "aten::_fused_adamw_"], "optimizer"),
    ],
)  # fmt: skip
def test_names_of_calls_make_parts(parts: ProfileRules, names: list[str], part: str) -> None:
    """The call and those around it decide, whatever lies between them."""
    tree: Any = Call(names[-1], 1)
    for name in reversed(names[:-1]):
        tree = Call(name, 1, [tree])
    assert [found for found, taken_s in own_seconds([tree], parts).items() if taken_s] == [part]


def check_adds_up(profile: dict[str, Any], needed: set[str]) -> None:
    shares = {row["part"]: row["share"] for row in profile["profile"]}
    assert needed <= set(shares)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares.get(OTHER, 0.0) < 0.2
    assert profile["recorded_share"] > 0.5  # how much more depends on who else runs on this machine


def test_a_sampling_step_adds_up(small_sample: SampleWork) -> None:
    """The parts of decoding, with what is in no part, are the wall time of the engine's thread."""
    work = replace(small_sample, batches=small_sample.batches[1:], new_tokens=40)
    check_adds_up(asyncio.run(profile_sample(work)), {"attention", "draw", "scheduling", "delivery", "head"})


def test_a_training_step_adds_up(small_train: TrainWork) -> None:
    """The parts of a training step, with what is in no part, are its wall time."""
    needed = {"attention", "attention, backward", "head", "optimizer", "publish", "loss", "packing"}
    check_adds_up(profile_train(small_train), needed)
