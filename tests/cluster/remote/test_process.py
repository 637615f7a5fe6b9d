"""A server as a process of a machine with a shell: started once, joined after, ended."""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from ludus.cluster.remote.base import EndedError
from ludus.cluster.remote.process import ProcessTarget
from ludus.cluster.remote.server import LaunchedServer
from ludus.cluster.remote.settings import LaunchSettings
from ludus.cluster.remote.shell import Here
from ludus.errors import BackendError, UserError
from tests.cluster.remote.conftest import MakeSettings


def launch(settings: LaunchSettings) -> tuple[LaunchedServer, list[str]]:
    told: list[str] = []
    server = LaunchedServer(ProcessTarget(Here(), settings), settings, told.append)
    server.open()
    return server, told


def status(server: LaunchedServer, key: str) -> int:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.get(f"{server.base_url}/api/v1/models", headers=headers).status_code


def pid_of(settings: LaunchSettings) -> int:
    return int((Path(settings.folder) / "launch.pid").read_text().split()[0])


def group_of(process: Path) -> int | None:
    """Of a folder of /proc. None: it has ended."""
    try:
        state, _, group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else int(group)


def test_it_serves_with_a_key_that_nobody_sees(settings: MakeSettings) -> None:
    """Not in the list of processes, not in a file that others may read, not in the log."""
    asked = settings(setup="echo all is ready", resources={"env": {"MARK": "it's here"}})
    server, told = launch(asked)
    assert status(server, server.key) == 200 and status(server, "another") == 401
    assert told[0] == "it runs" and "all is ready" in told
    line = Path(f"/proc/{pid_of(asked)}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    assert "--idle-s 60 --json" in line and "127.0.0.1" in line
    assert server.key not in line and not any(server.key in each for each in told)
    assert b"MARK=it's here" in Path(f"/proc/{pid_of(asked)}/environ").read_bytes()
    for file in Path(asked.folder).glob("launch.*"):
        assert not stat.S_IMODE(file.stat().st_mode) & 0o077, file
    server.close()
    server.close()


def test_who_launches_again_joins(settings: MakeSettings) -> None:
    """A script that was killed finds its server, with its key; closing ends it for all."""
    first, _ = launch(settings())
    second, _ = launch(settings())
    assert (second.base_url, second.key) == (first.base_url, first.key)
    with pytest.raises(UserError, match=r"is being served with other settings: .*--idle-s 60.*launch with the same"):
        launch(settings(idle_s=61.0))
    assert status(second, second.key) == 200
    second.close()
    with pytest.raises(EndedError, match=r"has ended \(it has ended\)\. Launch it again with folder="):
        first.check()
    third, _ = launch(settings())
    assert third.key != first.key
    third.close()


def test_two_that_launch_at_once_are_one_server(settings: MakeSettings) -> None:
    """Whoever comes second waits and joins."""
    with ThreadPoolExecutor() as pool:
        servers = [server for server, _ in pool.map(launch, [settings(), settings(), settings()])]
    assert len({(server.base_url, server.key) for server in servers}) == 1
    servers[0].close()


def test_one_that_cannot_start_says_why(settings: MakeSettings) -> None:
    """With the last lines of its log; nothing is left running."""
    asked = settings(overrides=("fail=true",))
    with pytest.raises(EndedError, match=r"ended before it served \(it has ended\)\. It wrote last:\nno accelerator"):
        launch(asked)
    with pytest.raises(EndedError, match="not found"):
        launch(settings(command="no-such-command"))
    with pytest.raises(BackendError, match=r"on this machine: .*can't cd to /no/such/folder"):
        launch(settings(workdir="/no/such/folder"))


def test_one_that_takes_too_long_is_stopped(settings: MakeSettings, tmp_path: Path) -> None:
    """And what it wrote is told."""
    pid = tmp_path / "pid"
    asked = settings(setup=f"echo $$ > {pid}; echo loading; sleep 1000", start_timeout_s=3)
    with pytest.raises(BackendError, match=r"does not serve after 3 s \(it runs\).*start_timeout_s(.|\n)*loading"):
        launch(asked)
    while any(group_of(process) == int(pid.read_text()) for process in Path("/proc").glob("[0-9]*")):
        time.sleep(0.02)  # what is killed takes a moment to end; the time limit of tests is the limit


def test_whoever_gives_up_leaves_none_behind(settings: MakeSettings) -> None:
    """While the server is loading."""
    asked, is_loading = settings(setup="echo loading; sleep 1001"), threading.Event()
    server = LaunchedServer(
        ProcessTarget(Here(), asked), asked, lambda line: is_loading.set() if line == "loading" else None
    )
    with ThreadPoolExecutor() as pool:
        opening = pool.submit(server.open)
        assert is_loading.wait(30)
        server.give_up()
        with pytest.raises(BackendError, match="given up"):
            opening.result()
    assert not (Path(asked.folder) / "launch.pid").exists()


def test_a_pid_that_is_somebody_else_s_is_not_taken_for_the_server(settings: MakeSettings) -> None:
    """Pids come round again, as after the machine was started anew."""
    asked = settings()
    first, _ = launch(asked)
    os.kill(pid_of(asked), signal.SIGKILL)
    (Path(asked.folder) / "launch.pid").write_text(f"{os.getpid()} 1\n")
    with pytest.raises(EndedError):
        first.check()
    ProcessTarget(Here(), asked).stop()
    second, _ = launch(asked)
    assert status(second, second.key) == 200
    second.close()


def test_resources_cannot_act_on_a_machine_that_is_there(settings: MakeSettings) -> None:
    """Only the environment can."""
    with pytest.raises(UserError, match=r"resources=\{'gpus': 1\.0\} cannot act on this machine.*all but env"):
        ProcessTarget(Here(), settings(resources={"gpus": 1}))
