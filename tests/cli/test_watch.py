from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from ludus.cli.watch import watching
from ludus.processes.program import PROGRAM
from ludus.runs.store import RunStore


def runs_of(link: str) -> list[dict[str, object]]:
    parts = urlsplit(link)
    headers = {"authorization": "Bearer " + parse_qs(parts.query)["key"][0]}
    found: list[dict[str, object]] = httpx.get(f"http://{parts.netloc}/api/runs", headers=headers).json()["runs"]
    return found


def test_the_page_is_served_until_it_is_told_to_end(tmp_path: Path) -> None:
    """Its link leads to the run; Ctrl-C is its end, not a failure."""
    RunStore.create(tmp_path, "run", "model: {path: x}\n").close()
    command = [*PROGRAM, "watch", str(tmp_path / "run"), "--no-open", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        link = json.loads(process.stdout.readline())["link"]
        assert link.endswith("#/run/run") and [each["id"] for each in runs_of(link)] == ["run"]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0


def test_a_run_may_begin_after_its_page(tmp_path: Path) -> None:
    """As with `ludus train --watch`: by a process of its own, which ends with the block."""
    with watching(tmp_path / "later") as link:
        assert runs_of(link) == []
        RunStore.create(tmp_path, "later", "model: {path: x}\n").close()
        assert [each["name"] for each in runs_of(link)] == ["later"]
    with pytest.raises(httpx.ConnectError):
        runs_of(link)


def test_where_there_is_no_run_it_is_said(ludus: Callable[..., object], tmp_path: Path) -> None:
    niceness = os.nice(0)
    for path in (tmp_path, tmp_path / "nowhere"):
        refused = ludus("watch", path, "--no-open")
        assert refused.code == 2 and str(path) in " ".join(refused.err.split())
    assert os.nice(0) == niceness  # it was not begun
