"""The kernels for cards, compiled by Triton for a card that need not be there: `make test-triton`."""

from __future__ import annotations

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ludus.engines.local.kernels.base import PAGE_TOKENS
from ludus.kernels import paged


@pytest.mark.parametrize(
    ("dtype", "head_dim", "tile_rows", "keys"),
    [("bf16", 64, 16, 64), ("bf16", 64, 64, 64), ("fp16", 128, 64, 64), ("bf16", 256, 64, 32), ("fp32", 256, 16, 32)],
)
def test_the_kernel_compiles_for_cards(dtype: str, head_dim: int, tile_rows: int, keys: int) -> None:
    """Down to machine code of compute capability 9.0, within the memory that a card's programs share."""
    constants = {
        "GROUP": 2, "D": head_dim, "D_PADDED": head_dim, "PAGE_TOKENS": PAGE_TOKENS, "TILE_ROWS": tile_rows,
        "KEYS": keys, "WINDOW": 0, "CAPPED": False, "HAS_SINKS": True,
        "PRECISION": "ieee" if dtype == "fp32" else "tf32",
    }  # fmt: skip
    numbers = ("q_head_stride", "q_row_stride", "out_row_stride", "token_stride")
    tables = ("page_ids", "first_row", "num_rows", "table_start", "num_seen")
    signature = {
        **dict.fromkeys(("q", "out", "cache"), f"*{dtype}"), "sinks": "*fp32", **dict.fromkeys(tables, "*i32"),
        **dict.fromkeys(numbers, "i32"), "scale": "fp32", "softcap": "fp32", **dict.fromkeys(constants, "constexpr"),
    }  # fmt: skip
    compiled = triton.compile(
        ASTSource(fn=paged.attend_tiles, signature=signature, constexprs=constants),
        target=GPUTarget("cuda", 90, 32),
        options={"num_stages": 2},
    )
    assert compiled.asm["cubin"] and compiled.metadata.shared <= 227 * 1024
