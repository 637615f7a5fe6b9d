"""Servers launched as jobs of a real Ray cluster, started on this machine by the test. Run by `make test-launch`."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ludus.cluster.remote.base import EndedError
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.server_backend import ServerBackend
from ludus.compat.art.trajectory import Trajectory
from ludus.errors import UserError
from ludus.processes.address import free_port
from tests.cluster.serve.specs import Model

TOKEN = "a-token-of-the-cluster-of-these-tests"
GROUPS = [TrajectoryGroup([Trajectory(reward=1.0)])]


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the dashboard of a cluster that wants a token of everybody."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        yield from cluster(tmp_path_factory)


def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    ray = Path(sys.executable).with_name("ray")
    folder, port = tmp_path_factory.mktemp("r"), free_port("127.0.0.1")
    ports = [f"--{name}={free_port('127.0.0.1')}" for name in ("port", "dashboard-agent-listen-port")]
    options = ["--head", "--num-cpus=2", f"--dashboard-port={port}", f"--temp-dir={folder}", "--disable-usage-stats"]
    started = subprocess.Popen(
        [ray, "start", "--block", *options, *ports],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert started.stdout is not None
    told = ""
    for line in started.stdout:
        told += line
        if "Ray runtime started" in line:
            break
    else:
        raise AssertionError(told)
    wait_until_it_answers(f"http://127.0.0.1:{port}/api/version")
    yield f"http://127.0.0.1:{port}"
    started.terminate()
    started.communicate()


def wait_until_it_answers(url: str) -> None:
    """The runtime says that it has started before its dashboard listens."""
    deadline = time.monotonic() + 60
    while not answers(url):
        assert time.monotonic() < deadline, f"{url} does not answer"
        time.sleep(0.2)


def answers(url: str) -> bool:
    try:
        httpx.get(url, trust_env=False)
    except httpx.TransportError:
        return False
    return True


@pytest.mark.timeout(300)
def test_a_model_is_trained_in_a_job(dashboard: str, options: dict[str, Any]) -> None:
    """Joined by who comes second, refused to who wants other settings, gone when its client is done."""
    folder = Path(options["folder"])
    lines: list[str] = []
    on = f"ray:{dashboard}"
    asked = options | {"resources": {"cpus": 1, "memory_gb": 0.1, "env": {"MARK": "it's here"}}}

    async def main() -> str:
        async with await ServerBackend.launch(on, on_line=lines.append, **asked) as backend:
            await backend.register(Model())
            for name in ("go-before", "go-after"):
                (folder / name).touch()
            assert (await backend.train(Model(), GROUPS)).step == 1
            second = await ServerBackend.launch(on, **asked)
            assert repr(second) == repr(backend)
            with pytest.raises(UserError, match="is being served with other settings"):
                await ServerBackend.launch(on, **asked, overrides=("seed=2",))
            return repr(backend)

    url = re.findall(r"http://[^']*", asyncio.run(main()))[0]
    assert any("is RUNNING" in line for line in lines) and lines[-1].startswith('{"url"')
    with pytest.raises(httpx.TransportError):
        httpx.get(url)
    assert httpx.get(f"{dashboard}/api/jobs/").status_code == 401
    while (states := states_of_jobs(dashboard)) == ["RUNNING"]:  # Ray says it a moment after the server has ended
        time.sleep(0.2)
    assert states == ["STOPPED"]


def states_of_jobs(dashboard: str) -> list[str]:
    jobs = httpx.get(f"{dashboard}/api/jobs/", headers={"authorization": f"Bearer {TOKEN}"}).json()
    return [job["status"] for job in jobs]


@pytest.mark.timeout(300)
def test_a_job_that_fails_says_why(dashboard: str, options: dict[str, Any]) -> None:
    """With Ray's words and its own."""

    async def main() -> None:
        await ServerBackend.launch(f"ray:{dashboard}", **options, overrides=("fail=true",))

    with pytest.raises(EndedError, match=r"before it served \(job ludus-serve-\w+ is FAILED(.|\n)*no accelerator"):
        asyncio.run(main())
