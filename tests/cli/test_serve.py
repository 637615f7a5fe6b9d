"""`ludus serve` lets nobody in who should not be, and says what is wrong with its settings before it listens."""

from __future__ import annotations

import json
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--host", "0.0.0.0"), "lets other machines in, and then the key must be yours: set LUDUS_API_KEY"),
        (("--host", "0.0.0.0", "--api-key", "short"), "5 characters; 16 or more are hard to guess"),
        (("engine.kv_byte=1",), "did you mean 'engine.kv_bytes'"),
    ],
)
def test_what_cannot_be_is_said_before_anything_listens(
    ludus: Any, tmp_path: Any, options: tuple[str, ...], message: str
) -> None:
    """Exit code 2 and a message; no folder is left behind."""
    ended = ludus("serve", "--folder", tmp_path / "server", *options)
    assert ended.code == 2 and message in " ".join(ended.err.split())
    assert not (tmp_path / "server").exists()


def test_it_says_where_it_is_and_ends_when_nobody_asks(ludus: Any, tmp_path: Any) -> None:
    """One line of JSON for who started it; a strange request does not keep it."""
    ended = ludus("serve", "--port", "0", "--folder", tmp_path / "server", "--json", "--idle-s", "1")
    assert ended.code == 0
    (line,) = (line for line in ended.out.splitlines() if line.startswith("{"))
    told = json.loads(line)
    assert told["host"] == "127.0.0.1" and told["url"] == f"http://127.0.0.1:{told['port']}"
    assert "nobody has asked for 1 s, and every job is done; ending" in ended.out
