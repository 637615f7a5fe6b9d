"""The example of docs/cluster-remote.md runs as it stands, with a real sshd and model. Run by `make test-launch`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from ludus.cluster.remote import LaunchSettings
from ludus.cluster.remote.process import ProcessTarget
from ludus.cluster.remote.shell import Ssh
from tests.cluster.remote.sshd import sshd
from tests.docs.pages import blocks, run_block

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)  # the embedded model is trained
def test_the_example_runs(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gpu-box` is this machine, behind a port, with a home of its own; nothing is left running there."""
    home, ssh = tmp_path / "home", shutil.which("ssh")
    (home / ".venv" / "bin").mkdir(parents=True)
    (home / ".venv" / "bin" / "ludus").symlink_to(tmp_path / "ludus")
    (tmp_path / "ludus").write_text(f'#!/bin/sh\ncd {home}\nPYTHONPATH={ROOT} exec {sys.executable} -m ludus "$@"\n')
    (tmp_path / "ludus").chmod(0o755)
    (home / ".cache").mkdir()
    (home / ".cache" / "ludus").symlink_to(smollm2.parents[1])
    with sshd(tmp_path / "sshd", environment={"HOME": str(home), "HF_HUB_OFFLINE": "1"}) as box:
        user = box.destination.partition("@")[0]
        words = " ".join(f"'{word}'" for word in (*box.options, "-o", "HostName=127.0.0.1", "-o", f"User={user}"))
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {ssh} {words} "$@"\n')
        (tmp_path / "bin" / "ssh").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        monkeypatch.chdir(tmp_path)
        names: dict[str, Any] = {}
        try:
            for code, printed in blocks("cluster-remote.md"):
                run_block(code, names)
                assert printed is None or capsys.readouterr().out == printed
        finally:
            ProcessTarget(Ssh("gpu-box"), LaunchSettings()).stop()
        assert (home / "runs" / "serve" / "jobs.db").exists()
        assert not (home / "runs" / "serve" / "launch.pid").exists()
