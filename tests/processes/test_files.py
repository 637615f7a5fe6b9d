"""One process at a time has a file, and loses it when it ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ludus.errors import UserError
from ludus.processes.files import free_bytes, lock, remembered, sync, user_cache

HOLD = """
import os, sys
from ludus.processes.files import lock
assert lock(os.open(sys.argv[1], os.O_RDONLY))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_killed_process_gives_up_what_it_had(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    path.mkdir() if kind == "folder" else path.touch()
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        descriptor = os.open(path, os.O_RDONLY)
        assert not lock(descriptor)
        other.kill()
        other.wait()
        assert lock(descriptor)
        os.close(descriptor)


def test_files_and_folders_can_be_synced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    sync(tmp_path / "file")
    sync(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync(tmp_path / "none")


def test_free_space_is_that_of_the_nearest_folder(tmp_path: Path) -> None:
    """A folder that is not made yet lies on its parent's disk."""
    assert free_bytes(tmp_path / "not" / "there") == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.05)


def test_what_was_measured_is_kept_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every file system has them; nothing else stays behind, and the first to finish decides all the same."""

    def link(source: Path, target: Path) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "numbers.json"
    assert remembered(path, lambda: {"ratio": 1.5}) == remembered(path, lambda: {"ratio": 2.5}) == {"ratio": 1.5}

    def slower() -> dict[str, float]:
        path.write_text('{"ratio": 3.5}')
        return {"ratio": 4.5}

    path.unlink()
    assert remembered(path, slower) == {"ratio": 3.5}
    assert list(tmp_path.iterdir()) == [path]


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container's may be; a cache folder that is named is enough."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(UserError, match="set HOME, or XDG_CACHE_HOME"):
        user_cache()
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert user_cache() == Path("/somewhere/ludus")
