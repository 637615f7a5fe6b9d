"""What several of these tests take."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(params=["waitid", "without waitid"])
def has_waitid(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Python's own on macOS does not have it."""
    has = request.param == "waitid"
    if not has:
        monkeypatch.delattr(os, "waitid")
    return has
