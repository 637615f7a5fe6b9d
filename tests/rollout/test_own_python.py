"""An agent in a Python of its own, in which nothing of Ludus is installed."""

from __future__ import annotations

import venv
from pathlib import Path
from typing import Any

import pytest

from ludus.api.play import play
from ludus.config import Config
from ludus.errors import UserError
from ludus.types import Episode

AGENT = """
import json, os, sys, time, urllib.request

try:
    import ludus
except ImportError:
    ludus = None


class Agent:
    def __init__(self, bonus=0.0):
        self.bonus, self.played = bonus, 0

    async def run(self, data, *, base_url, api_key):
        assert ludus is None and os.environ["OPENAI_BASE_URL"] == base_url and "SECRET" not in os.environ
        self.played += 1
        print("asked", data["what"])
        body = json.dumps({"messages": [{"role": "user", "content": "Guess."}], "max_tokens": 4}).encode()
        headers = {"authorization": "Bearer " + api_key, "content-type": "application/json"}
        request = urllib.request.Request(base_url + "/chat/completions", body, headers)
        answer = json.load(urllib.request.urlopen(request))
        if data["what"] == "raise":
            raise KeyError("nothing here")
        if data["what"] == "exit":
            os._exit(3)
        if data["what"] == "hang":
            time.sleep(600)
        if data["what"] == "ids":
            return {answer["id"]: 0.25}
        return {"reward": 1.0 + self.bonus, "metrics": {"success": 1.0}}


def broken():
    raise SystemExit("no key")


class Broken:
    def __init__(self):
        broken()
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of an environment with nothing in it."""
    folder = tmp_path_factory.mktemp("env")
    venv.create(folder, symlinks=True)
    return str(folder / "bin" / "python")


def played(
    model: Path, python: str, folder: Path, *what: str, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> dict[str, Episode]:
    (folder / "own_agent.py").write_text(AGENT)
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.chdir(folder)
    config = Config(
        model={"path": str(model), "dtype": "float32"},
        engine={"kv_bytes": 2**22},
        gconfig={"n_samples": 1},
        rollout={
            "agent": {"mode": "subproc", "subproc_max_workers": 2, "python": python},
            "episode_timeout_s": 5.0,
            "retries": 0,
        },
    )
    rows = [{"what": each} for each in what]
    reference = options.pop("reference", f"{folder / 'own_agent.py'}:Agent")
    episodes = play(reference, rows, config=config, **options)
    return {rows[int(each.task_id.removeprefix("row"))]["what"]: each for each in episodes}


def test_it_plays_raises_ends_and_hangs(
    python: str, tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each episode has its outcome, with its turn, what was printed, and the last frames of the agent's own code."""
    what = ("good", "raise", "exit", "hang", "ids")
    found = played(tiny_model_folder, python, tmp_path, *what, monkeypatch=monkeypatch, workflow_kwargs={"bonus": 0.5})
    good, ids = found["good"], found["ids"]
    assert (good.outcome.kind, good.reward, good.metrics["success"]) == ("ok", 1.5, 1.0)
    assert (ids.outcome.kind, ids.reward) == ("ok", 0.25)
    assert all(len(each.session.turns) == 1 for each in found.values())
    (process,) = [span for span in good.spans if span.kind == "process"]
    assert process.outputs["stderr"] == "asked good\n"
    raised, ended, hung = (found[name].outcome for name in ("raise", "exit", "hang"))
    assert raised.kind == "failed" and "KeyError: 'nothing here'" in raised.reason
    assert "own_python" not in raised.reason and "own_agent.py" in raised.reason
    assert ended.kind == "failed" and "exit status 3" in ended.reason
    assert hung.kind == "timeout" and "process was killed" in hung.reason


def test_what_cannot_be_set_up_is_told_at_once(
    python: str, tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is played."""
    for reference, interpreter, match in (
        (f"{tmp_path / 'own_agent.py'}:Broken", python, "cannot be set up in (.|\\n)*no key"),
        ("nowhere:Agent", python, "No module named 'nowhere'"),
        (f"{tmp_path / 'own_agent.py'}:Agent", "/no/python", "'/no/python' cannot be started"),
        (object(), python, "imports the agent itself: name it"),
    ):
        with pytest.raises(UserError, match=match):
            played(tiny_model_folder, interpreter, tmp_path, "good", monkeypatch=monkeypatch, reference=reference)
