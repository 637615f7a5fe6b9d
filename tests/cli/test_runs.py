"""ludus status, ludus stop: a run looked at and ended from another process."""

import os
import signal
import socket
import subprocess
import sys
import time

from ludus.cluster.registry import Registry
from ludus.cluster.status import HeadView, RoleView, RunStatus, write_status


def head(**other):
    told = {"pid": os.getpid(), "host": socket.gethostname(), "scheduler": "local", "job": None, "url": "", "key": ""}
    return HeadView(**{**told, "started_at": time.time() - 60, **other})


def test_status_shows_every_process(ludus, tmp_path):
    """The head, and for each role its state, place and address."""
    role = RoleView("engine", 0, "ready", "pid 7", "here", "http://127.0.0.1:9", 2, "engine-0.log", time.time())
    write_status(tmp_path, RunStatus(head(), [role]))
    shown = ludus("status", str(tmp_path))
    assert shown.code == 0
    assert "runs" in shown.out and "engine-0" in shown.out and "ready" in shown.out


def test_status_of_a_run_that_has_ended(ludus, tmp_path):
    """Without a head the command says how the run stands; a head that was killed is told from one that runs."""
    assert "has no process" in ludus("status", str(tmp_path)).out
    (tmp_path / "summary.json").write_text("{}")
    assert "has ended" in ludus("status", str(tmp_path)).out
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    write_status(tmp_path, RunStatus(head(pid=gone.pid)))
    assert "is gone; go on with --resume" in ludus("status", str(tmp_path)).out
    assert ludus("stop", str(tmp_path)).code == 2
    assert ludus("status", str(tmp_path / "none")).code == 2


def test_stop_is_ctrl_c_from_elsewhere(ludus, tmp_path):
    """A head on this machine gets the signal; one elsewhere is asked over its registry, with the run's key."""
    waiting = "import signal, time; signal.signal(signal.SIGINT, signal.default_int_handler); print(1); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-uc", waiting], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        process.stdout.readline()
        write_status(tmp_path, RunStatus(head(pid=process.pid)))
        assert ludus("stop", str(tmp_path)).code == 0
        assert process.wait(30) == -signal.SIGINT
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    asked = []
    with Registry("", on_stop=lambda: asked.append(True)) as registry:
        write_status(tmp_path, RunStatus(head(host="elsewhere", url=registry.url, key=registry.key)))
        assert "runs" in ludus("status", str(tmp_path)).out
        assert ludus("stop", str(tmp_path)).code == 0
        assert asked == [True]
        write_status(tmp_path, RunStatus(head(host="elsewhere", url=registry.url, key="wrong")))
        assert ludus("stop", str(tmp_path)).code == 1
    write_status(tmp_path, RunStatus(head(host="elsewhere")))
    assert ludus("stop", str(tmp_path)).code == 2


def test_the_status_is_its_owners_alone(tmp_path):
    """It holds the key of the run."""
    write_status(tmp_path, RunStatus(head(key="secret")))
    assert (tmp_path / "roles.json").stat().st_mode & 0o077 == 0
