"""A release is a function of its commit; the container's file names what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "first" / "clone"
    if git("clone", "--quiet", "--no-hardlinks", str(ROOT), str(folder)).returncode != 0:
        pytest.skip("this is no clone of the repository")
    return folder


def built(clone: Path, out: Path, *, umask: int, **environment: str) -> dict[str, bytes]:
    command = [sys.executable, str(clone / "release.py"), str(out)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, umask=umask, capture_output=True, text=True, cwd=out.parent
    )
    assert done.returncode == 0, done.stderr
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.mark.timeout(300)
def test_a_release_is_built_the_same_twice(clone: Path, tmp_path: Path) -> None:
    """In two clones of other names, with other modes, times, languages and zones, and with what lies about in one."""
    other = tmp_path / "b"
    assert git("clone", "--quiet", "--no-hardlinks", str(clone), str(other)).returncode == 0
    (other / "ludus" / "left_over.py").write_text("left = 1\n")
    for path in (other / "ludus").rglob("*.py"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
        path.chmod(0o600)
    first = built(clone, tmp_path / "one", umask=0o022, TZ="Asia/Tokyo", PYTHONHASHSEED="1")
    second = built(other, tmp_path / "two", umask=0o077, TZ="America/Lima", LC_ALL="C", PYTHONHASHSEED="2")
    assert sorted(first) == sorted(second) and {name.rpartition(".")[2] for name in first} == {"whl", "gz"}
    assert first == second
    (wheel,) = (tmp_path / "one").glob("*.whl")
    (source,) = (tmp_path / "one").glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as files:
        names = {*files.namelist()}
    with tarfile.open(source) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    tracked = git("-C", str(clone), "ls-files", "ludus", "ludus_vllm").stdout.split()
    assert {*tracked} <= names and {*tracked} <= sources and "ludus/left_over.py" not in names
    assert not [name for name in names | sources if "__pycache__" in name]


def test_the_container_is_made_of_what_there_is() -> None:
    """Every file that is copied is in the repository, no command runs as root, and the command is `make demo`'s.

    What is installed is what the README says."""
    lines = (ROOT / "Containerfile").read_text().splitlines()
    for line in lines:
        if line.startswith("COPY "):
            sources = [word for word in line.split()[1:-1] if not word.startswith("--")]
            assert all((ROOT / source).exists() for source in sources), line
    users = [number for number, line in enumerate(lines) if line.startswith("USER ")]
    commands = [number for number, line in enumerate(lines) if line.startswith(("CMD", "ENTRYPOINT"))]
    assert users and commands and max(users) < min(commands) and lines[users[-1]] != "USER root"
    (extras,) = re.findall(r"constraints.txt '(\S+)'", (ROOT / "README.md").read_text())
    assert any(line.endswith(f"'{extras}'") for line in lines), "what a user installs who takes no image"
    demo = re.search(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert demo is not None
    told = [line.replace("$(BIN)/", "").replace(" seed=$(SEED)", "").strip() for line in demo[1].splitlines()]
    command = lines[commands[-1]]
    assert [words for words in told if words not in command] == []
