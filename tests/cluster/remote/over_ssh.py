"""Servers launched through a real sshd: reached, cut off, reached again, ended. Run by `make test-launch`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ludus.cluster.remote.base import EndedError
from ludus.cluster.remote.shell import Ssh, UnreachableError
from ludus.compat.art.backends import TrainProgress
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.server_backend import ServerBackend
from ludus.compat.art.trajectory import Trajectory
from ludus.errors import BackendError, UserError
from tests.cluster.remote.conftest import ROOT, MakeSettings
from tests.cluster.remote.sshd import Sshd, sshd
from tests.cluster.serve.specs import Model

GROUPS = [TrajectoryGroup([Trajectory(reward=1.0)])]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sshd]:
    with sshd(tmp_path / "sshd") as server:
        yield server


@pytest.fixture
def over_ssh(box: Sshd, options: dict[str, Any]) -> dict[str, Any]:
    return options | {"ssh_options": box.options}


def on(box: Sshd) -> str:
    return f"ssh:{box.destination}"


class Noted:
    """What a job tells, and what a test does about it."""

    def __init__(self, **reactions: Callable[[], None]) -> None:
        self.stages: list[str] = []
        self._reactions = reactions

    def __call__(self, progress: TrainProgress) -> None:
        self.stages.append(progress.stage)
        self._reactions.get(progress.stage, lambda: None)()


def go(folder: str, *names: str) -> None:
    for name in names:
        (Path(folder) / name).touch()


def is_served(folder: str) -> bool:
    return (Path(folder) / "launch.pid").exists()


@pytest.mark.usefixtures("settings")
def test_a_model_is_trained_where_the_server_is(box: Sshd, over_ssh: dict[str, Any]) -> None:
    """Its address is on this machine; its own is loopback there; when the client is done nothing is left there."""
    go_on = over_ssh["folder"]
    lines: list[str] = []

    async def main() -> tuple[int, str]:
        async with await ServerBackend.launch(on(box), on_line=lines.append, **over_ssh) as backend:
            inference = await backend.prepare(Model())
            go(go_on, "go-before", "go-after")
            async with httpx.AsyncClient(base_url=inference.base_url) as stranger:
                assert (await stranger.get("/models")).status_code == 401
            return (await backend.train(Model(), GROUPS)).step, inference.base_url

    step, url = asyncio.run(main())
    assert step == 1 and url.startswith("http://127.0.0.1:")
    assert lines[0] == "it runs" and lines[-1].startswith('{"url"')
    assert not is_served(go_on)
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


@pytest.mark.usefixtures("settings")
def test_a_cut_connection_is_made_again(box: Sshd, over_ssh: dict[str, Any]) -> None:
    """In the middle of a step, and while nobody answers for a while: one step, told of to its end, at one address."""
    folder = over_ssh["folder"]

    def cut() -> None:
        assert box.cut() >= 1
        go(folder, "go-before")

    def back() -> None:
        box.start()
        go(folder, "go-after")

    def away() -> None:
        box.stop()
        threading.Timer(2.0, back).start()

    noted = Noted(batch=cut, checkpoint=away)

    async def main() -> int:
        async with await ServerBackend.launch(on(box), patience_s=60, **over_ssh) as backend:
            await backend.register(Model())
            return (await backend.train(Model(), GROUPS, on_progress=noted)).step

    assert asyncio.run(main()) == 1
    assert noted.stages == ["batch", "checkpoint"]
    assert len(list(Path(folder).glob("step-*"))) == 1


@pytest.mark.usefixtures("settings")
def test_a_server_that_has_ended_is_no_connection_that_was_cut(box: Sshd, over_ssh: dict[str, Any]) -> None:
    """The client is told at once, with the end of its log, not when its patience is over."""
    pid = Path(over_ssh["folder"]) / "launch.pid"

    async def main() -> None:
        async with await ServerBackend.launch(on(box), patience_s=600, **over_ssh) as backend:
            await backend.register(Model())
            os.kill(int(pid.read_text().split()[0]), signal.SIGKILL)
            await backend.register(Model())

    with pytest.raises(EndedError, match=r"has ended.*Launch it again with folder="):
        asyncio.run(main())


@pytest.mark.usefixtures("settings")
def test_a_machine_that_is_away_is_told_as_ssh_tells_it(box: Sshd, over_ssh: dict[str, Any]) -> None:
    """Once the client has no patience left."""

    async def main() -> None:
        backend = await ServerBackend.launch(on(box), patience_s=1.0, **over_ssh)
        box.stop()
        try:
            await backend.register(Model())
        finally:
            box.start()
            await backend.close()

    with pytest.raises(BackendError, match=r"cannot be reached \((.|\n)*[Cc]onnection (refused|closed|reset)"):
        asyncio.run(main())
    assert not is_served(over_ssh["folder"])


SCRIPT = """
import asyncio, sys
from ludus.compat.art.server_backend import ServerBackend

async def main():
    backend = await ServerBackend.launch({on!r}, **{options!r})
    print(backend, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_a_script_that_was_killed_finds_its_server(box: Sshd, over_ssh: dict[str, Any], settings: MakeSettings) -> None:
    """`kill -9` leaves the server, which a second start joins, and no tunnel; a step that was sent is done once."""
    del settings  # its end sees to it that the server ends
    folder = over_ssh["folder"]
    source = SCRIPT.format(on=on(box), options=over_ssh)
    script = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert script.stdout is not None and script.stdout.readline().startswith("ServerBackend(")
    pid = (Path(folder) / "launch.pid").read_text()
    script.kill()
    script.communicate()
    go(folder, "go-before", "go-after")

    async def main() -> int:
        async with await ServerBackend.launch(on(box), **over_ssh) as backend:
            assert (Path(folder) / "launch.pid").read_text() == pid
            await backend.register(Model())
            first = await backend.train(Model(), GROUPS, idempotency_key="step-1")
            again = await backend.train(Model(), GROUPS, idempotency_key="step-1")
            assert first == again
            return first.step

    assert asyncio.run(main()) == 1
    tunnels = subprocess.run(["pgrep", "-f", f"ssh .*-p {box.port} .*-L"], capture_output=True, text=True, check=False)
    assert tunnels.stdout == ""


def test_a_server_that_nobody_asks_ends(box: Sshd, over_ssh: dict[str, Any]) -> None:
    """Also where its client is gone: after the time that it was launched with."""

    async def main() -> None:
        backend = await ServerBackend.launch(on(box), **(over_ssh | {"idle_s": 1.0}))
        assert backend._launched is not None
        while True:
            await asyncio.to_thread(backend._launched.check)

    with pytest.raises(EndedError):
        asyncio.run(main())


def test_who_has_no_key_is_not_let_in(box: Sshd, tmp_path: Path) -> None:
    """The error is ssh's own, and says what to try."""
    (tmp_path / "nothing").write_text("")
    options = [str(tmp_path / "nothing") if word.endswith("/user") else word for word in box.options]
    with pytest.raises(UnreachableError, match=r"cannot be reached: (.|\n)*Permission denied(.|\n)*try `ssh "):
        Ssh(box.destination, options).run("true")
    with pytest.raises(UserError, match="names no machine"):
        Ssh("-oProxyCommand=touch /tmp/x")
    with pytest.raises(BackendError, match=f"on {box.destination}: oh no"):
        Ssh(box.destination, box.options).run("echo oh no >&2; exit 3")


@pytest.mark.usefixtures("settings")
def test_a_rented_machine_is_given_back(
    box: Sshd, over_ssh: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sky launch` with a task file that SkyPilot takes, the key in the environment; `sky down` when the client is
    done, and when what was rented does not come to serve."""
    notes = tmp_path / "notes"
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "sky"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("sky.py")} "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SKY_NOTES", str(notes))
    monkeypatch.setenv("SKY_PIDS", str(Path(over_ssh["folder"]) / "launch.pid"))
    # As SkyPilot writes it for its clusters into ~/.ssh/config; here only while the machine is rented.
    config = tmp_path / "ssh_config"
    monkeypatch.setenv("SKY_SSH_CONFIG", str(config))
    monkeypatch.setenv("SKY_SSH_HOST", f"HostName 127.0.0.1\nUser {box.destination.partition('@')[0]}\n")
    asked = over_ssh | {
        "ssh_options": (*box.options, "-F", str(config)),
        "sky": {"setup": f"touch {tmp_path}/set-up", "resources": {"accelerators": "A100:1"}},
    }

    async def main(**changes: Any) -> None:
        async with await ServerBackend.launch("sky:rented", **(asked | changes)) as backend:
            await backend.register(Model())
            async with await ServerBackend.launch("sky:rented", **(asked | changes)) as joined:
                await joined.register(Model())

    asyncio.run(main())
    assert (tmp_path / "set-up").exists()
    launched, *downs = notes.read_text().splitlines()
    assert launched.startswith("launch --yes --detach-run --cluster rented --secret LUDUS_API_KEY /")
    assert downs == ["down --yes rented"]  # who joined ended the server alone
    notes.unlink()
    with pytest.raises(EndedError, match="no accelerator here"):
        asyncio.run(main(overrides=("fail=true",)))
    assert [line.split()[0] for line in notes.read_text().splitlines()] == ["launch", "down"]
    notes.unlink()
    with pytest.raises(BackendError, match=r"`sky launch` failed with exit code(.|\n)*'A100:1' is not"):
        asyncio.run(main(sky={"file_mounts": "A100:1"}))
    assert [line.split()[0] for line in notes.read_text().splitlines()] == ["launch", "down"]
