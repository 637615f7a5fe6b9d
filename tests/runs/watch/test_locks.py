from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ludus.processes.files import hold
from ludus.runs.watch import locks
from ludus.runs.watch.locks import is_held


def test_a_lock_is_seen_and_left_alone(tmp_path: Path) -> None:
    """Of this process and of another; who looks never stands in the way of who takes it."""
    path = tmp_path / "writer.lock"
    assert not is_held(path)
    held = hold(path)
    assert held is not None and is_held(path)
    os.close(held)
    assert not is_held(path)
    script = "import sys; from pathlib import Path; from ludus.processes.files import hold\n"
    script += "hold(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        assert is_held(path) and hold(path) is None
        other.communicate("")
    assert not is_held(path)


HOLDS_A_RANGE = "import fcntl, sys\nfile = open(sys.argv[1], 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX)\n"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the lock is tried")
def test_a_lock_of_another_machine_is_seen(tmp_path: Path) -> None:
    """A file server keeps it as a lock of a range of bytes."""
    path = tmp_path / "writer.lock"
    path.touch()
    script = HOLDS_A_RANGE + "print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        assert is_held(path)
        other.communicate("")
    assert not is_held(path)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the lock is tried")
def test_a_lock_is_seen_where_the_list_names_another_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on btrfs: who holds it has the file open; of another file with its number nobody does."""
    path, listed = tmp_path / "writer.lock", tmp_path / "locks"
    held = hold(path)
    assert held is not None
    line = f"1: FLOCK  ADVISORY  WRITE {{}} 00:ff:{path.stat().st_ino} 0 EOF\n"
    monkeypatch.setattr(locks, "_LOCKS", listed)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True) as other:
        listed.write_text(line.format(other.pid))
        assert not is_held(path)
        listed.write_text(line.format(other.pid) + line.format(os.getpid()))
        assert is_held(path)
        other.communicate("\n")
    os.close(held)
