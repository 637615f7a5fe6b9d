"""`mlflow ui` on the database that a run has written, in a real browser."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.runs.browser import Browser
from tests.runs.trackers.conftest import tracked, with_tools
from tests.runs.trackers.test_mlflow import read_back

pytestmark = pytest.mark.timeout(400)  # the server takes a quarter of a minute to start, on a busy machine many


@pytest.fixture(scope="module")
def server(database: str) -> Iterator[str]:
    """The address of `mlflow ui`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "ui", "-h", "127.0.0.1", "-p", str(port), "-w", "1"]
    process = subprocess.Popen(
        [*command, "--backend-store-uri", database], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(url, process)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline_at = time.monotonic() + 300
    while True:
        try:
            httpx.get(url, trust_env=False).raise_for_status()
        except httpx.HTTPError:
            assert process.poll() is None and time.monotonic() < deadline_at, "the server did not start"
            time.sleep(0.2)
        else:
            return


def test_a_person_finds_an_episode_and_reads_it(server: str, tmp_path: Path) -> None:
    """The list names groups, rewards and outcomes; a click shows the spans of run, answers, tools and reward."""
    with Browser(tmp_path / "browser") as page:
        page.open(f"{server}/#/experiments/1/traces")
        listed = page.wait_for("first/group-0", "first/group-1", "Got it", "reward", "success", "Error")
        assert "3 of 3" in listed
        page.click("Got it")  # what MLflow tells a newcomer
        page.click("Guess. It is higher than 7.")  # the last of the list is the first that was played
        page.wait_for("126 tokens", "run", "generate", "add", "search", "think", "grade")
        page.click("search")
        page.wait_for("TimeoutError: too long")
        page.click("generate")
        page.wait_for("Guess a number from 1 to 20.", "number then11 higher guess number number myThe 7")
        page.picture(tmp_path / "trace.png")


def test_a_server_takes_traces_too(server: str, tmp_path: Path) -> None:
    """With its address in the place of the database, a trace arrives whole."""
    with tracked(tmp_path, "second", to="mlflow", project="served", mlflow={"tracking_uri": server}) as run:
        run.add_episode(with_tools(1), step=4)
    [trace] = read_back(server, "served")["traces"]
    assert (trace["info"]["tags"]["step"], trace["assessments"]) == ("4", {"reward": 0.5, "success": 1.0})
    assert [span["name"] for span in trace["spans"]][:4] == ["run", "generate", "add", "generate"]
    assert trace["spans"][2]["inputs"] == {"a": 1}
