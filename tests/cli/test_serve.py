"""`ludus serve` lets nobody in who should not be, and says what is wrong with its settings before it listens."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--host", "0.0.0.0"), "lets other machines in, and then the key must be yours: set LUDUS_API_KEY"),
        (("--host", "0.0.0.0", "--api-key", "short"), "5 characters; 16 or more are hard to guess"),
        (("engine.kv_byte=1",), "did you mean 'engine.kv_bytes'"),
        (("total_train_steps=3",), "total_train_steps cannot act in a backend"),
    ],
)
def test_what_cannot_be_is_said_before_anything_listens(
    ludus: Any, tmp_path: Any, options: tuple[str, ...], message: str
) -> None:
    """Exit code 2 and a message; no folder is left behind."""
    ended = ludus("serve", "--folder", tmp_path / "server", *options)
    assert ended.code == 2 and message in " ".join(ended.err.split())
    assert not (tmp_path / "server").exists()
