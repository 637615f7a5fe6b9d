"""Row-wise kernels for cards under Triton's interpreter: `make test-triton`.

fp32 alone: the interpreter cuts bf16 numbers off where a card rounds them. On a card: tests/gpu.
"""

from __future__ import annotations

import torch

from ludus.kernels.triton_rowwise import TritonRowwise
from ludus.models.rowwise import TorchRowwise
from tests.models.test_rowwise import assert_same, results


def test_both_compute_the_same() -> None:
    """Triton's kernels and torch's operations, forward and backward."""
    assert_same(results(TritonRowwise(), torch.float32), results(TorchRowwise(), torch.float32), torch.float32)
