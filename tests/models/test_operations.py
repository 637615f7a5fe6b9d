"""The choice between native and torch's operations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ludus.kernels.rowwise import NativeRowwise
from ludus.models.operations import choose_operations, native_linear, torch_linear
from ludus.models.rowwise import TorchRowwise


def test_native_where_they_can_be_had() -> None:
    """fp32 and bf16 on the CPU are served by native operations."""
    for dtype in (torch.float32, torch.bfloat16):
        operations = choose_operations(torch.zeros(4, 4, dtype=dtype))
        assert isinstance(operations.rowwise, NativeRowwise) and operations.linear is native_linear


def test_other_types_and_machines_run_on_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another type, or no compiler for the row-wise operations: torch's own are chosen."""
    operations = choose_operations(torch.zeros(4, 4, dtype=torch.float16))
    assert isinstance(operations.rowwise, TorchRowwise) and operations.linear is torch_linear
    monkeypatch.setenv("PATH", str(tmp_path))
    assert isinstance(choose_operations(torch.zeros(4, 4)).rowwise, TorchRowwise)
