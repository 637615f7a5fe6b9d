"""A real command, started by a real process that is killed."""

import os
import signal
import subprocess
import sys

import pytest

PARENT = """
import subprocess, sys, time
from ludus.processes.end_with_parent import end_with_parent
subprocess.Popen(end_with_parent((sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)")))
time.sleep(60)
"""


@pytest.mark.usefixtures("parent_death_signal")
def test_a_command_ends_with_the_killed_process_that_started_it():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout.readline() == "up\n"
        finally:
            parent.send_signal(signal.SIGKILL)
        # the command holds the other end of the pipe: it is closed when the command has ended
        assert parent.stdout.read() == ""


def test_a_command_whose_parent_is_gone_already_does_not_begin(tmp_path):
    from ludus.processes import end_with_parent as end_with_parent

    command = [sys.executable, "-I", end_with_parent.__file__, str(os.getpid() + 1), "touch", str(tmp_path / "begun")]
    assert subprocess.run(command).returncode == 1
    assert not (tmp_path / "begun").exists()
