from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from ludus.api.trainer import Trainer
from ludus.cli.watch import watching
from ludus.processes.program import PROGRAM
from ludus.runs.store import RunStore
from tests.api.test_recorded_tokens import ROWS, LettersAgent, config_of


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


def test_the_models_of_a_run_answer_in_a_process_that_ends_with_the_page(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    """From a turn of a run that was trained a checkpoint answers again; a model that is gone says so; and when the page
    has ended, nothing of it is left."""
    Trainer(config_of(tiny_model_folder, tmp_path, total_train_steps=1), ROWS).train(LettersAgent)
    command = [*PROGRAM, "watch", str(tmp_path / "run"), "--no-open", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        parts = urlsplit(json.loads(process.stdout.readline())["link"])
        key = parse_qs(parts.query)["key"][0]
        client = httpx.Client(
            base_url=f"http://{parts.netloc}/api/runs/run/",
            headers={"authorization": f"Bearer {key}"},
            timeout=60,
            trust_env=False,
        )
        with client:
            episode = client.get("episodes").json()["episodes"][0]["id"]
            turn = client.get(f"episodes/{episode}").json()["turns"][-1]["id"]
            asked = {"episode": episode, "turn": turn, "n": 2, "model": "step-000001"}
            branch = client.post("branches", json=asked).json()["branch"]
            found = _when_done(client, branch)
            assert found["state"] == "finished" and all(each["tokens"] for each in found["samples"]), found["error"]
            chat = {"models": ["final"], "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
            events = [json.loads(line[6:]) for line in client.post("chat", json=chat).text.splitlines() if line]
            assert events[-1]["done"] and "detail" not in events[-1] and events[0]["delta"]
            shutil.rmtree(tmp_path / "run" / "model")
            refused = client.post("chat", json=chat)
            assert refused.status_code == 404 and "this run has base, step-000001" in refused.json()["detail"]
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
        assert len(children) == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(children[0]), 0)


def _when_done(client: httpx.Client, branch: str) -> dict[str, Any]:
    deadline = time.monotonic() + 120
    while (found := client.get(f"branches/{branch}").json())["state"] == "running":
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return dict(found)


def test_where_there_is_no_run_it_is_said(ludus: Callable[..., object], tmp_path: Path) -> None:
    niceness = os.nice(0)
    for path in (tmp_path, tmp_path / "nowhere"):
        refused = ludus("watch", path, "--no-open")
        assert refused.code == 2 and str(path) in " ".join(refused.err.split())
    assert os.nice(0) == niceness  # it was not begun
