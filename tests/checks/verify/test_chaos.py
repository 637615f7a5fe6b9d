"""The chaos check with five faults, one of each kind but one: real processes, killed and stopped. It can fail."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

import ludus
from ludus.checks.verify import chaos
from ludus.checks.verify.chaos import _Disturbed as Disturbed
from ludus.checks.verify.chaos import _unbalanced as unbalanced
from ludus.checks.verify.chaos import verify_chaos
from ludus.checks.verify.training import write_run
from ludus.checks.verify.verdict import ignore
from ludus.errors import BackendError, UserError
from ludus.runs.store import RunStore
from tests.runs.conftest import episode_of


def test_another_system_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any run is trained, which could not be disturbed there."""
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match="system calls of Linux, and this is darwin"):
        verify_chaos(model="no such model")


@pytest.mark.skipif(sys.platform != "linux", reason="what happens to processes are Linux's calls")
@pytest.mark.timeout(900)
def test_a_disturbed_run_ends_as_if_nothing_had_been(tiny_model_folder: Path) -> None:
    """Whatever happens to whichever process: nothing is lost, nothing is twice, and the weights are the same."""
    result = verify_chaos(kills=5, model=str(tiny_model_folder), seed=1)
    assert result.first_difference is None
    assert (result.tokens_lost, result.twice, result.unbalanced, result.weights_equal) == (0, 0, 0, True), result
    assert result.kills == 5 and len(result.kinds) >= 4 and result.ok


@pytest.mark.skipif(sys.platform != "linux", reason="what happens to processes are Linux's calls")
@pytest.mark.timeout(900)
def test_runs_that_should_be_equal_and_are_not_stay(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what they said and what they recorded, where the result says."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(chaos, "digest", lambda run: run.name)
    result = verify_chaos(kills=0, model=str(tiny_model_folder))
    assert not result.ok and result.first_difference is None and result.kept is not None
    (kept,) = tmp_path.iterdir()
    assert str(kept) == result.kept and (kept / "alone.log").stat().st_size
    assert all((kept / "runs" / name / "run.db").exists() for name in ("alone", "disturbed"))


@pytest.mark.skipif(sys.platform != "linux", reason="what happens to processes are Linux's calls")
def test_what_is_lost_is_counted(tmp_path: Path) -> None:
    """Tokens of an episode that is gone or is another one, episodes that two steps were given, a ledger that is off."""
    run = Disturbed(tmp_path, random.Random(0), [], ignore)
    episodes = [episode_of(number) for number in range(3)]
    with RunStore.create(tmp_path / "runs", "disturbed", "name: disturbed\n") as store:
        for number, episode in enumerate(episodes, start=1):
            store.add_episode(episode, step=number)
            store.add_batch(number, {"groups": [{"episodes": [episode.id]}]})
            store.add_metrics(number, {"time/step_s": 1.0})
    run._look()
    assert (run.tokens_lost(), run.num_twice()) == (0, 0)
    with RunStore.open(run.folder) as store:
        store.change_episode(episode_of(1, reward=0.5))
        store.add_batch(3, {"groups": [{"episodes": [episodes[0].id]}]})
    assert (run.tokens_lost(), run.num_twice()) == (episodes[1].session.num_sampled_tokens, 1)
    with sqlite3.connect(run.folder / "run.db") as db:
        db.execute("DELETE FROM episodes WHERE num = 1")
    db.close()
    assert run.tokens_lost() == sum(episode.session.num_sampled_tokens for episode in episodes[:2])
    ledger = {"sampled": 10, "trained": 6, "masked": {"aborted": 1}}
    (run.folder / "summary.json").write_text(json.dumps({"ledger": ledger}))
    assert unbalanced(run.folder) == 3


class Head:
    """A start of the run that has ended by itself, with a summary."""

    options: ClassVar[list[Sequence[str]]] = []
    popen = SimpleNamespace(poll=lambda: 0, pid=0, returncode=0)

    def __init__(self, folder: Path, name: str, *options: str, environment: Mapping[str, str]) -> None:
        self.options.append(options)
        (folder / "runs" / name).mkdir(parents=True, exist_ok=True)
        (folder / "runs" / name / "summary.json").write_text('{"ledger": {}}')

    def kill(self) -> None:
        pass

    def failed(self, words: str) -> BackendError:
        return BackendError(words)


@pytest.mark.skipif(sys.platform != "linux", reason="what happens to processes are Linux's calls")
def test_a_head_that_ended_before_its_record_was_whole_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between run.db and the lock of its writer, a run is refused if it is started anew."""
    monkeypatch.setattr(chaos, "Training", Head)
    monkeypatch.setattr(Head, "options", [])
    for _ in range(2):
        Disturbed(tmp_path, random.Random(0), [], ignore).play()
    assert Head.options == [(), ("--resume",)]


@pytest.mark.skipif(sys.platform != "linux", reason="what happens to processes are Linux's calls")
def test_a_process_that_is_not_there_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else happens in its place, later: to a head that has ended nothing does, nor to a process that ends as
    it is chosen."""
    run = Disturbed(tmp_path, random.Random(0), [0], ignore)
    run._disturb(Head(tmp_path, "ended", environment={}))  # type: ignore[arg-type]
    assert run.faults == [] and run._moments == [0]
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(chaos, "_processes", lambda _: [("worker-0", ended.pid)])
    run._kinds = ["stop"]
    monkeypatch.setattr(Head, "popen", SimpleNamespace(poll=lambda: None, pid=0))
    run._disturb(Head(tmp_path, "runs", environment={}))  # type: ignore[arg-type]
    assert run.faults == [] and run._moments == [0] and run._kinds == ["stop"]


@pytest.mark.skipif(sys.platform != "linux", reason="what happens to processes are Linux's calls")
def test_a_run_that_stands_still_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its last lines."""
    monkeypatch.setattr(chaos, "Training", Head)
    monkeypatch.setattr(chaos, "_STANDS_STILL_S", 0.0)
    monkeypatch.setattr(Head, "popen", SimpleNamespace(poll=lambda: None, pid=0))
    with pytest.raises(BackendError, match="no further than step 0 for 0 s"):
        Disturbed(tmp_path, random.Random(0), [], ignore).play()


def test_no_episode_is_over_because_what_it_waits_for_was_lost(tmp_path: Path) -> None:
    """Restarts may take long on a busy machine; one that had timed out is played again, with another seed."""
    write_run(tmp_path, tmp_path, 0, 1, chaos._placed(tmp_path))
    assert ludus.load_config(tmp_path / "run.yaml").rollout.episode_timeout_s is None
