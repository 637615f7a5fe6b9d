"""A server as a job of Slurm, whose commands are stood for by a script; `over_slurm.py` asks the real ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ludus.cluster.remote.base import EndedError
from ludus.cluster.remote.server import LaunchedServer
from ludus.cluster.remote.settings import LaunchSettings
from ludus.cluster.remote.shell import Here, UnreachableError
from ludus.cluster.remote.slurm import SlurmTarget
from ludus.errors import UserError
from tests.cluster.remote.conftest import MakeSettings
from tests.cluster.remote.test_process import status


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the script that stands for Slurm, whose queue is empty and does not move."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name in ("sbatch", "squeue", "scancel"):
        (folder / name).symlink_to(Path(__file__).with_name("slurm.sh"))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_STAND", str(folder))
    return folder


def launch(settings: LaunchSettings, on_line: Any = lambda line: None) -> LaunchedServer:
    server = LaunchedServer(SlurmTarget(Here(), settings), settings, on_line)
    server.open()
    return server


def test_it_waits_in_the_queue_and_serves_on_its_node(settings: MakeSettings, slurm: Path) -> None:
    """Its client gets its state there; who comes second joins; scancel ends it."""
    told: list[str] = []

    def on_line(line: str) -> None:
        told.append(line)
        (slurm / "go").touch()

    asked = settings(sbatch=("--partition=gpu",), resources={"cpus": 4, "gpus": 1, "memory_gb": 1.5, "env": {"A": "b"}})
    server = launch(asked, on_line)
    assert told[0] == "job 41 is PENDING (Resources)" and "job 41 is RUNNING (None)" in told
    assert status(server, server.key) == 200 and status(server, "another") == 401
    assert launch(asked).key == server.key
    options = (slurm / "options").read_text().split("\n")
    assert {"--cpus-per-task=4", "--gpus=1", "--mem=1536M", "--no-requeue", "--signal=B:TERM@120"} < set(options)
    assert options[-3:] == ["--partition=gpu", "launch.sh", ""] and server.key not in options
    assert [path.name for path in slurm.glob("job-*")] == ["job-41"]
    server.close()
    with pytest.raises(EndedError, match=r"\(job 41 is FAILED|its job has ended"):
        server.check()


def test_a_job_that_fails_says_why(settings: MakeSettings, slurm: Path) -> None:
    """With the message of squeue and with the end of its log."""
    (slurm / "go").touch()
    with pytest.raises(
        EndedError, match=r"before it served \(job 41 is FAILED \(NonZeroExitCode\)\)(.|\n)*no accelerat"
    ):
        launch(settings(overrides=("fail=true",)))


def test_a_controller_that_is_away_is_no_job_that_has_ended(settings: MakeSettings, slurm: Path) -> None:
    """It may be asked again; one that has forgotten the job has."""
    (slurm / "go").touch()
    asked = settings()
    server = launch(asked)
    (slurm / "away").touch()
    server.check()
    with pytest.raises(UnreachableError, match=r"squeue: .*Unable to contact slurm controller"):
        SlurmTarget(Here(), asked).status()
    (slurm / "away").unlink()
    server.close()
    (Path(asked.folder) / "launch.job").write_text("1\n")
    with pytest.raises(EndedError, match=r"has ended \(its job has ended\)"):
        server.check()


def test_a_submission_that_is_refused(settings: MakeSettings, slurm: Path) -> None:
    """Is reported with the message of sbatch; nothing is left to be joined."""
    (slurm / "sbatch").unlink()
    (slurm / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: gpu' >&2\nexit 1\n")
    (slurm / "sbatch").chmod(0o755)
    with pytest.raises(Exception, match="on this machine: sbatch: error: invalid partition specified: gpu"):
        launch(settings())
    with pytest.raises(UserError, match=r"resources\.cpus=1\.5 cannot be had from Slurm, which gives whole ones"):
        SlurmTarget(Here(), settings(resources={"cpus": 1.5}))
