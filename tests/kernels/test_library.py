"""What the wrappers of the compiled libraries share."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from ludus.kernels.build import build_library
from ludus.kernels.library import ADDRESS, DTYPES, dense_last, load_library, refuse, refuse_heads

CPU = torch.device("cpu")


def test_functions_get_their_signatures() -> None:
    """Those that are named take what was said and return nothing."""
    arguments = (ADDRESS, ctypes.c_int32)
    function = load_library(build_library("adamw"), {"ludus_adamw": arguments}).ludus_adamw
    assert tuple(function.argtypes) == arguments and function.restype is None


def test_what_cannot_be_opened_or_found_is_an_error(tmp_path: Path) -> None:
    """A file that is no library, and a function that a library lacks, are named."""
    (tmp_path / "broken.so").write_text("no library")
    with pytest.raises(OSError, match=r"broken\.so.*noexec.*XDG_CACHE_HOME"):
        load_library(tmp_path / "broken.so", {})
    with pytest.raises(AttributeError, match="ludus_nothing"):
        load_library(build_library("adamw"), {"ludus_nothing": ()})


def test_a_refusal_names_what_was_got() -> None:
    """Devices, types and widths that are not served; None for those that are."""
    assert "meta" in str(refuse(torch.device("meta"), torch.float32))
    assert "float16" in str(refuse(CPU, torch.float16))
    assert all(refuse(CPU, dtype) is None for dtype in DTYPES)
    assert "meta" in str(refuse_heads(torch.device("meta"), torch.float32, 64))
    assert "the model has 40" in str(refuse_heads(CPU, torch.float32, 40))
    assert "the model has 272" in str(refuse_heads(CPU, torch.float32, 272))
    assert refuse_heads(CPU, torch.bfloat16, 256) is None


def test_only_tensors_with_gaps_are_copied() -> None:
    """Rows may lie anywhere; the numbers of a row may not."""
    tensor = torch.arange(6).reshape(2, 3)
    assert dense_last(tensor) is tensor
    assert dense_last(tensor.T).is_contiguous() and dense_last(tensor.T).equal(tensor.T)
