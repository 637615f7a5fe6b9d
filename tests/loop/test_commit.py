"""Which commit trained a run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ludus.loop.commit import source_commit


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@x"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_checkout_has_its_commit(tmp_path: Path) -> None:
    """With a plus where tracked files were changed since; new files change nothing."""
    git(tmp_path, "init", "-q")
    package = tmp_path / "package"
    package.mkdir()
    (package / "code.py").write_text("1\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "notes.txt").write_text("new\n")
    assert source_commit(package) == commit
    (package / "code.py").write_text("2\n")
    assert source_commit(package) == commit + "+"


def test_elsewhere_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In no checkout, in one that does not hold the package, and without git."""
    assert source_commit(tmp_path) is None
    git(tmp_path, "init", "-q")
    (tmp_path / "site-packages").mkdir()
    assert source_commit(tmp_path / "site-packages") is None
    monkeypatch.setenv("PATH", "")
    assert source_commit(Path(__file__).parent) is None
