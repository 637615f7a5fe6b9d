"""What several of these tests take."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

import pytest


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0]
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int) -> None:
    """Returns when the process has ended; the test's own time limit is the limit."""
    while is_running(pid):
        time.sleep(0.01)


@pytest.fixture(params=["waitid", "without waitid"])
def has_waitid(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Python's own on macOS does not have it."""
    has = request.param == "waitid"
    if not has:
        monkeypatch.delattr(os, "waitid", raising=False)
    elif not hasattr(os, "waitid"):
        pytest.skip("os.waitid is not there")
    return has


@pytest.fixture
def parent_death_signal() -> None:
    """What a process cannot be bound to its parent without; a container's runtime may forbid it."""
    get_it = 2  # PR_GET_PDEATHSIG of sys/prctl.h
    if sys.platform != "linux" or ctypes.CDLL(None).prctl(get_it, ctypes.byref(ctypes.c_int()), 0, 0, 0):
        pytest.skip("prctl is not there: what is started outlives a killed process")
