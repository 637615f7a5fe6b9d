"""What the sandbox keeps code from, tried: each attack is a program that is run in it, behind every kind of walls."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ludus.errors import UserError
from ludus.processes import walls as walls_module
from ludus.processes.address import address_of_machine
from ludus.processes.sandbox import SandboxLimits, SandboxRun, run_python
from ludus.processes.walls import KEPT_FROM, Walls, standing, walls
from tests.attacks.programs import FILES, HEAD, KERNEL, MOUNTS, NETWORK, PROCESSES, TOTALS

ATTEMPTS = {**FILES, **MOUNTS, **NETWORK, **PROCESSES, **KERNEL}
WALLS = {kind: Walls(kind) for kind in standing()} | (
    {"user": Walls("own", is_root=False)} if "own" in standing() else {}
)
LIMITS = SandboxLimits(timeout_s=20, memory_bytes=256 << 20, disk_bytes=16 << 20, num_inodes=2000, num_processes=32)


@pytest.fixture(params=list(WALLS)[:1] or [""])
def kind(request: pytest.FixtureRequest, sandbox: None) -> str:
    """Those that are used here; `every_wall.py` has the others."""
    return str(request.param)


@dataclass(frozen=True)
class Outside:
    """What attacks are after, and what reached it."""

    folder: Path
    values: dict[str, object]
    reached: list[str]

    def state(self) -> tuple[object, ...]:
        kept, folder = (self.folder / "kept").stat(), self.folder.stat()
        names = sorted(path.name for path in self.folder.iterdir())
        return (kept.st_mode, kept.st_uid, kept.st_mtime_ns, kept.st_nlink, kept.st_size, folder.st_mode, names)


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    """A file, servers and a process of this machine."""
    folder, reached = tmp_path_factory.mktemp("outside"), list[str]()
    folder.chmod(0o755)
    (folder / "kept").write_text("mine")
    name = str(folder)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
        servers.append(stack.enter_context(socket.socket()))
        for server, address in zip(servers, (str(folder / "socket"), f"\0{name}", ("0.0.0.0", 0)), strict=True):
            server.bind(address)
            server.listen()
            threading.Thread(target=_accept, args=(server, reached), daemon=True).start()
        process = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, env={"SECRET": "mine"}
        )
        port, host = servers[-1].getsockname()[1], address_of_machine()
        known = {"folder": str(folder), "pid": process.pid, "port": port, "name": name, "address": host}
        yield Outside(folder, known, reached)
        process.kill()
        process.communicate()


def _accept(server: socket.socket, reached: list[str]) -> None:
    with contextlib.suppress(OSError):
        while True:
            server.accept()[0].close()
            reached.append(str(server.family))


def attack(outside: Outside, closed: Walls, program: str) -> SandboxRun:
    code = (HEAD + program).format(**outside.values)
    return asyncio.run(run_python(code, limits=LIMITS, walled=closed))


@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_attempt_is_refused(outside: Outside, kind: str, name: str) -> None:
    """The call raises, and what it was after is as before."""
    before = outside.state()
    done = attack(outside, WALLS[kind], f"{ATTEMPTS[name]}\nthrough()")
    assert done.ending == "error" and "THROUGH" not in done.stdout, f"{done.stdout}{done.stderr}"
    assert "SyntaxError" not in done.stderr and "NameError" not in done.stderr, done.stderr
    assert outside.state() == before and not outside.reached


@pytest.mark.parametrize("name", TOTALS)
def test_no_total_is_passed(outside: Outside, kind: str, name: str) -> None:
    """Whatever is taken piece by piece: all together is limited."""
    done = attack(outside, WALLS[kind], TOTALS[name])
    assert done.ending == "error" and "THROUGH" not in done.stdout, f"{done.stdout}{done.stderr}"
    assert "SyntaxError" not in done.stderr and "NameError" not in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["read a file", "chmod a file", "Unix socket by path", "signal a process"])
def test_the_attacks_are_real(outside: Outside, name: str) -> None:
    """Without walls they succeed."""
    assert "THROUGH" in attack(outside, Walls("none"), f"{ATTEMPTS[name]}\nthrough()").stdout
    outside.reached.clear()
    (outside.folder / "kept").chmod(0o644)


def test_usual_programs_run(kind: str) -> None:
    """Files, children, pipes, threads, temporary files, the event loop, pools of processes, numbers, dates."""
    code = (
        "import asyncio, datetime, json, multiprocessing, os, subprocess, tempfile, threading, time\n"
        "from pathlib import Path\n"
        "Path('a/b').mkdir(parents=True); Path('a/b/c').write_text('1'); Path('a/b/c').chmod(0o600)\n"
        "print(subprocess.run(['cat', 'a/b/c'], capture_output=True, text=True).stdout)\n"
        "with tempfile.NamedTemporaryFile() as file: file.write(b'x')\n"
        "with multiprocessing.Pool(2) as pool: print(pool.map(abs, [-1, 2]))\n"
        "asyncio.run(asyncio.sleep(0)); datetime.datetime.now(); thread = threading.Thread(target=print)\n"
        "thread.start(); thread.join(); print(sum(map(int, input().split())))"
    )
    done = asyncio.run(run_python(code, stdin="1 2 3\n", walled=WALLS[kind]))
    assert (done.ending, done.stdout) == ("ok", "1\n[1, 2]\n\n6\n"), done.stderr
    assert done.isolation == KEPT_FROM


def test_a_process_may_have_any_name(kind: str) -> None:
    """Also one that is no text, which the guard meets when it looks at what is used."""
    code = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'\\xff\\xfe', 0, 0, 0); time.sleep(0.1); print(1)"
    done = asyncio.run(run_python(code, walled=WALLS[kind]))
    assert (done.ending, done.stdout) == ("ok", "1\n"), done.stderr


def test_bubblewrap_may_lie_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has it outside the system's own folders gets its walls, or what it says, and no traceback."""
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho no namespaces here >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    _, missing = walls_module._found.__wrapped__()
    assert "bubblewrap: no namespaces here" in missing


def test_without_walls_nothing_runs_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal says what is missing and what to do."""
    monkeypatch.setattr(walls_module, "_found", lambda: ((), ("bubblewrap: bwrap is not installed",)))
    with pytest.raises(
        UserError, match=r"cannot keep a model's code in: bubblewrap: bwrap is not installed.*sandbox: none"
    ):
        asyncio.run(run_python("1"))
    assert walls("none").isolation == frozenset()
    assert asyncio.run(run_python("print(1)", walled="none")).stdout == "1\n"
