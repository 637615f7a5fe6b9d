"""Processes that end, seen with and without `os.waitid`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from ludus.processes.ended import exit_code, kill_group
from tests.processes.conftest import wait_until_gone

LEAVES_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
"""


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, start_new_session=True) as process:
        yield process
        kill_group(process.pid)


def ended(process: subprocess.Popen[bytes]) -> int:
    while (code := exit_code(process)) is None:
        time.sleep(0.01)
    return code


@pytest.mark.parametrize(
    ("started", "code"),
    [
        ("input(); raise SystemExit(3)", 3),
        ("input()", 0),
        ("import os, signal; input(); os.kill(os.getpid(), signal.SIGKILL)", -9),
    ],
    indirect=["started"],
)
@pytest.mark.usefixtures("has_waitid")
def test_how_a_process_ended(started: subprocess.Popen[bytes], code: int) -> None:
    assert exit_code(started) is None
    assert started.stdin is not None
    started.stdin.write(b"\n")
    started.stdin.close()
    assert ended(started) == code
    assert started.wait() == code


@pytest.mark.parametrize("started", [LEAVES_A_CHILD], indirect=True)
def test_what_is_left_of_its_group_can_still_be_killed(started: subprocess.Popen[bytes], has_waitid: bool) -> None:
    """Its number is its own until somebody waits for it; where it cannot be, nothing is left by then."""
    assert started.stdout is not None
    child = int(started.stdout.readline())
    assert ended(started) == 0
    if has_waitid:
        os.kill(child, 0)
        assert kill_group(started.pid)
    wait_until_gone(child)
