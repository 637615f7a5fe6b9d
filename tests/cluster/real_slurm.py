"""Runs in a real Slurm of one node, which `slurm_node.sh` sets up: `CONSENT=yes make test-slurm`."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster import recovery

pytestmark = pytest.mark.timeout(900)
NODE = Path(__file__).with_name("slurm_node.sh")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """The environment in which this machine is a cluster of one node."""
    # In a folder that the daemon of munge may enter.
    folder = Path("/tmp") / f"ludus-slurm-{os.getpid()}"
    with (tmp_path_factory.mktemp("slurm") / "node.log").open("w+") as log:
        node = subprocess.Popen([str(NODE), str(folder), "8"], stdout=log, stderr=log)
        while not (folder / "up").exists():
            assert node.poll() is None, Path(log.name).read_text()
            time.sleep(0.2)
        yield {"SLURM_CONF": str(folder / "slurm.conf")}
        node.terminate()
        node.wait()
        subprocess.run(["rm", "-r", str(folder)], check=True)


@pytest.fixture
def submit(slurm, tmp_path, tiny_model_folder):
    """A run as a job of Slurm."""
    recovery.write_run(tmp_path)
    env = recovery.environment(**slurm)
    jobs = []

    def submit(name, steps):
        keys = ("scheduler.type=slurm", "scheduler.head.cpus=1")
        command = recovery.train_command(tiny_model_folder, name, steps, *keys)
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        jobs.append(re.search(r"submitted as job (\d+)", done.stdout)[1])
        return tmp_path / "runs" / name, jobs[-1]

    yield submit
    for job in jobs:
        subprocess.run(["scancel", job], env=env, check=True)


def test_a_step_is_killed_and_comes_back(submit):
    """A worker's step is killed in the middle of a run; the run goes on, and nothing is trained twice."""
    run, _ = submit("killed", 6)
    for step, role in ((1, "rollout"), (3, "engine")):
        recovery.wait_for_step(run, step)
        os.kill(recovery.wait_for_role(run, role), signal.SIGKILL)
    recovery.wait_for_end(run)
    recovery.check_recovered(run, 6, was_lost=True)


def test_a_job_out_of_time_is_queued_again_and_goes_on(submit, slurm):
    """The signal that Slurm sends before the time is over ends in a checkpoint; the job begins again and resumes."""
    run, job = submit("requeued", 8)
    recovery.wait_for_step(run, 2)
    subprocess.run(["scancel", "--signal=USR1", "--batch", job], env=recovery.environment(**slurm), check=True)
    recovery.wait_for_end(run, 400)
    log = (run / "roles" / "head.log").read_text()
    assert "interrupted and saved" in log and "--resume" in log
    assert (
        "Restarts=1"
        in subprocess.run(
            ["scontrol", "show", "job", job],
            env=recovery.environment(**slurm),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    assert recovery.num_steps(run) == 8
