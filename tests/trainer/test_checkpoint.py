"""A trainer's state on disk, where the disk refuses."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from ludus.errors import UserError
from ludus.trainer.checkpoint import STATE_FILE, read_state, take_masters, write_state
from ludus.trainer.ranks import SingleRank
from ludus.trainer.rounding import Rounding

ALL: dict[str, Any] = {"pieces": {}, "copies": frozenset()}
"""Of a rank that keeps whole tensors."""


def test_a_disk_that_refuses_the_tensors_is_an_os_error(tmp_path: Path) -> None:
    """As it is with every other file, so that whoever saves can say what to do."""
    (tmp_path / "trainer-00001-of-00001.safetensors").mkdir()
    state = {
        "masters": {"w": torch.zeros(1)},
        "moments": {},
        "num_batches": 0,
        "loss_scale": (1.0, 0),
        "shapes": {"w": (1,)},
        **ALL,
    }
    with pytest.raises(OSError, match="directory"):
        write_state(tmp_path, 1, state, SingleRank())


@pytest.mark.parametrize("moments", [torch.float32, torch.bfloat16])
def test_a_state_is_written_tensor_by_tensor(moments: torch.dtype, tmp_path: Path) -> None:
    """To the bit, whatever the moments' type; nothing is copied together first, which for 4 billion weights would take
    48 GB more. What a rank keeps no rows of is left out."""
    shapes = {"w": (512, 1021), "v": (1000, 513), "none": (0, 3)}
    masters = {name: torch.randn(shape) for name, shape in shapes.items()}
    moved = {
        name: {"exp_avg": each.to(moments), "exp_avg_sq": (each * each).to(moments), "step": torch.tensor(3.0)}
        for name, each in masters.items()
    }
    state = {"masters": masters, "moments": moved, "num_batches": 3, "loss_scale": (1.0, 0), "shapes": shapes, **ALL}
    tracemalloc.start()
    write_state(tmp_path, 1, state, SingleRank())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < masters["w"].nbytes  # half of which is room for the header
    _, read = read_state(tmp_path)
    for name in ("w", "v"):
        assert torch.equal(read["masters"][name], masters[name])
        kept = read["moments"][name]
        assert all(torch.equal(kept[kind], moved[name][kind]) for kind in kept)
        assert kept["exp_avg"].dtype == moments
    with safe_open(tmp_path / "trainer-00001-of-00001.safetensors", framework="pt") as file:
        names = set(file.keys())
    assert len(names) == 6 and "masters/none" not in names


def test_a_checkpoint_without_a_loss_scale_is_read(tmp_path: Path) -> None:
    """As they were written before float16 was trained."""
    state = {"masters": {"w": torch.ones(1)}, "moments": {}, "num_batches": 3, "loss_scale": (1.0, 0), **ALL}
    write_state(tmp_path, 1, {**state, "shapes": {"w": (1,)}}, SingleRank())
    about = json.loads((tmp_path / STATE_FILE).read_text())
    del about["loss_scale"]
    (tmp_path / STATE_FILE).write_text(json.dumps(about))
    version, read = read_state(tmp_path)
    assert (version, read["num_batches"], read["loss_scale"], read["masters"]["w"]) == (1, 3, None, torch.ones(1))


def test_masters_are_taken_as_weights_of_the_same_shape_alone(tmp_path: Path) -> None:
    """Whatever else the checkpoint holds; of another model nothing is taken."""
    masters = {"w": torch.arange(6.0).view(2, 3), "head": torch.ones(1)}
    state = {"masters": masters, "moments": {}, "num_batches": 1, "loss_scale": (1.0, 0), **ALL}
    write_state(tmp_path, 1, {**state, "shapes": {"w": (2, 3), "head": (1,)}}, SingleRank())
    weight, rounding = torch.zeros(2, 3, dtype=torch.bfloat16), Rounding("dither", 0, torch.device("cpu"))
    take_masters({"w": weight}, tmp_path, rounding)
    assert torch.equal(weight.float(), masters["w"])
    for name, other, says in (("w", (3, 2), "shape"), ("v", (2, 3), "is missing")):
        with pytest.raises(UserError, match=says):
            take_masters({name: torch.zeros(other)}, tmp_path, rounding)
