"""What a tracker's client has started keeps to idle cores too, and its CPU time counts."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from ludus.runs.trackers.family import cpu_s

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="lists of threads and processes are Linux's")

_FAMILY = """
import os, subprocess, sys, threading
from ludus.runs.trackers.family import run_as_others, run_in_idle_time
thread = threading.Thread(target=threading.Event().wait, daemon=True)
thread.start()
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
for change in (run_in_idle_time, run_as_others):
    change()
    print(*(os.sched_getscheduler(each) for each in (0, thread.native_id, child.pid)))
child.communicate(b"\\n")
"""


def test_threads_and_processes_of_a_client_run_in_idle_time() -> None:
    """Also those that were there before, until the run waits for them."""
    idle, others = subprocess.run(
        [sys.executable, "-c", _FAMILY],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ).stdout.splitlines()
    assert idle.split() == [str(os.SCHED_IDLE)] * 3 and others.split() == [str(os.SCHED_OTHER)] * 3


def test_cpu_time_of_a_child_counts_while_it_lives_and_after() -> None:
    """Starting Python takes some hundredths of a second, of which this process uses none."""
    before_s, own_s = cpu_s(), time.process_time()
    child = subprocess.Popen([sys.executable, "-c", "print(); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    alive_s = cpu_s() - before_s - (time.process_time() - own_s)
    child.communicate(b"\n")
    ended_s = cpu_s() - before_s - (time.process_time() - own_s)
    assert 0 < alive_s <= ended_s + 0.02
