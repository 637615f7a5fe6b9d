"""What the chaos check has happen to processes does happen to them, and ends."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from ludus.checks.verify.faults import Clock, cut, descendants, fill_disk, kill, stop

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the calls are Linux's")
TICKS = "import time\nwhile True: print(time.time(), flush=True); time.sleep(0.01)"
WRITES = """
import time
while True:
    try:
        with open({path!r}, "ab") as file: file.write(b"x")
        print("written", flush=True)
    except OSError as error: print(error.strerror, flush=True)
    time.sleep(0.01)
"""
CONNECTS = """
import socket, time
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
accepted, _ = listening.accept()
accepted.recv(1)
print("cut", flush=True)
listening.accept()
print("accepted", flush=True)
"""


@contextmanager
def running(code: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE  # its input too: where ours is empty, what reads it would end at once
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment or None)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_process_stands_still_and_goes_on() -> None:
    """Between two of its lines lies the time that it stood still."""
    with running(TICKS) as process:
        before = float(said(process))
        stop(process.pid, 0.3)
        times = [before, *(float(said(process)) for _ in range(100))]
        assert max(later - earlier for earlier, later in pairwise(times)) >= 0.25
        kill(process.pid, 0.0)
        assert process.wait() == -9


def test_connections_are_cut_and_servers_go_on_listening() -> None:
    """Both sides see the end; who comes after the cut is let in."""
    with running(CONNECTS) as process:
        port = int(said(process))
        with socket.create_connection(("127.0.0.1", port)) as ours:
            cutting = threading.Thread(target=cut, args=(process.pid, 0.3))
            cutting.start()
            assert said(process) == "cut" and ours.recv(1) == b""
            cutting.join()
        with socket.create_connection(("127.0.0.1", port)):
            assert said(process) == "accepted"


def test_a_disk_is_full_for_a_while(tmp_path: Path) -> None:
    """Files do not grow, with an error that the process can handle, and then they do."""
    with running(WRITES.format(path=str(tmp_path / "file"))) as process:
        assert said(process) == "written"
        fill_disk(process.pid, 0.3)
        lines = {said(process) for _ in range(60)}
        assert lines == {"written", "File too large"}
        assert said(process) == "written"


def test_a_clock_jumps_and_comes_back(tmp_path: Path) -> None:
    """For the processes that have its environment, and for nobody else; waits take as long as they do."""
    clock = Clock(tmp_path, random.Random(1))
    with running(TICKS, **clock.environment) as process:
        assert abs(float(said(process)) - time.time()) < 60
        clock.jump(process.pid, 0.2)
        jumped = [abs(float(said(process)) - time.time()) > 60 for _ in range(60)]
        assert any(jumped) and not jumped[-1]


def test_children_are_found() -> None:
    """They, and nobody else."""
    inner = (
        f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {TICKS!r}], stdout=-3).pid, flush=True)"
    )
    with running(f"{inner}; sys.stdin.read()") as process:
        child = int(said(process))
        found = list(descendants(process.pid))
        kill(child, 0.0)
        assert found == [child]


def test_a_process_may_end_of_what_happens_to_it() -> None:
    """Killed while it stands still or has no network, by whoever gave it up: that happened, and is no error. Who is not
    there before is one."""

    def end(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    for fault in (stop, cut):
        process = subprocess.Popen([sys.executable, "-c", TICKS], stdout=subprocess.DEVNULL)
        ending = threading.Timer(0.1, end, (process,))
        ending.start()
        fault(process.pid, 0.5)
        ending.join()
        with pytest.raises(ProcessLookupError):
            fault(process.pid, 0.0)
