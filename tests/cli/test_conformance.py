"""`ludus conformance`: a matrix, one object in the last line, an exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ludus.checks.conformance.mutants import FAULTS


def test_our_own_server_is_played(ludus: Callable[..., Any]) -> None:
    """Without a URL the cases run on the local server; the last line counts them."""
    ended = ludus("conformance", "--only", "chat/n/", "--json")
    body = json.loads(ended.last)
    assert ended.code == 0, ended.out
    assert body["failed"] == body["skipped"] == 0 < body["passed"]
    assert "chat" in ended.out.splitlines()[0]


def test_mutants_are_counted(ludus: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With too few cases a fault is missed: exit code 1, and the last line says which."""
    some = [fault for fault in FAULTS if fault.name in ("no [DONE]", "seed ignored")]
    monkeypatch.setattr("ludus.cli.conformance.FAULTS", some)
    ended = ludus("conformance", "--mutants", "--only", "chat/streaming/done", "--json")
    body = json.loads(ended.last)
    assert (ended.code, body["mutants"], body["caught"]) == (1, 2, 1)
    assert body["missed"] == ["seed ignored"] and "seed ignored" in ended.out


def test_wrong_arguments_are_the_users_error(ludus: Callable[..., Any]) -> None:
    """An unknown pattern, a URL that is none, a model or mutants without their server: exit code 2 and what to do."""
    assert ludus("conformance", "--only", "telepathy").code == 2
    assert ludus("conformance", "--base-url", "http://127.0.0.1:9/v1").code == 2
    assert ludus("conformance", "--model", "tiny").code == 2
    ended = ludus("conformance", "--base-url", "http://127.0.0.1:9/v1", "--mutants")
    assert ended.code == 2 and "leave --base-url out" in ended.err
