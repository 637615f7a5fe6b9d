"""A run of several processes on this machine whose worker and engine are killed in its middle."""

import os
import signal
import subprocess

import pytest

from tests.cluster import recovery


@pytest.mark.timeout(600)
def test_a_run_whose_processes_are_killed_goes_on(tmp_path, tiny_model_folder):
    """A worker and the engine are killed and come back; the ledger balances, and no group is trained twice."""
    recovery.write_run(tmp_path)
    run = tmp_path / "runs" / "killed"
    command = recovery.train_command(tiny_model_folder, "killed", 6)
    with (tmp_path / "head.log").open("w") as log:
        head = subprocess.Popen(command, cwd=tmp_path, env=recovery.environment(), stdout=log, stderr=log)
        try:
            for step, role in ((1, "rollout"), (3, "engine")):
                recovery.wait_for_step(run, step)
                os.kill(recovery.wait_for_role(run, role), signal.SIGKILL)
            assert head.wait(500) == 0, (tmp_path / "head.log").read_text()
        finally:
            head.kill()
            head.wait()
    recovery.check_recovered(run, 6, was_lost=True)
    assert not (run / "roles.json").exists()
