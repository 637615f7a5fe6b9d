"""A trainer's state on disk, where the disk refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ludus.trainer.checkpoint import write_state
from ludus.trainer.ranks import SingleRank


def test_a_disk_that_refuses_the_tensors_is_an_os_error(tmp_path: Path) -> None:
    """As it is with every other file, so that whoever saves can say what to do."""
    (tmp_path / "trainer-00001-of-00001.safetensors").mkdir()
    state = {
        "masters": {"w": torch.zeros(1)},
        "moments": {},
        "num_batches": 0,
        "loss_scale": (1.0, 0),
        "shapes": {"w": (1,)},
    }
    with pytest.raises(OSError, match="directory"):
        write_state(tmp_path, 1, state, SingleRank())
