"""The run folder keeps what it acknowledged, exactly, and says clearly why it cannot."""

from __future__ import annotations

import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ludus.errors import UserError
from ludus.runs.codec import decode_episode, encode_episode
from ludus.runs.store import RunStore
from ludus.runs.watch.outline import outline
from ludus.types import Episode


def test_an_episode_comes_back_exactly(tmp_path: Path, full_episode: Episode) -> None:
    """Every field of an episode, to the last bit of each logprob, is what it was."""
    with RunStore.create(tmp_path, "run", "") as store:
        store.add_episode(full_episode, step=3)
    (again,) = RunStore.open(tmp_path / "run").episodes()
    assert again == full_episode
    assert again.session.turns[0].sampled.logprobs == full_episode.session.turns[0].sampled.logprobs


def test_messages_are_stored_once(make_episode: Callable[..., Episode]) -> None:
    """A conversation of n turns holds n messages, not n squared."""
    sizes = [len(encode_episode(make_episode(1, num_turns=num))) for num in (10, 20, 40)]
    assert sizes[2] - sizes[1] < 2.6 * (sizes[1] - sizes[0])


def test_values_that_json_does_not_know_do_not_lose_the_episode(make_episode: Callable[..., Episode]) -> None:
    """Metadata with foreign keys and objects is kept as text."""
    episode = make_episode(1, metadata={("a", 1): {3}, "path": Path("x")})
    assert decode_episode(encode_episode(episode)).metadata == {"('a', 1)": [3], "path": repr(Path("x"))}


def test_a_run_of_another_format_is_refused(tmp_path: Path) -> None:
    """A run that another version wrote is neither read wrongly nor changed; the message names both formats."""
    RunStore.create(tmp_path, "run", "").close()
    with closing(sqlite3.connect(tmp_path / "run" / "run.db")) as db:
        db.execute("PRAGMA user_version = 1")
    with pytest.raises(UserError, match=r"'.*run'.*have the format 1, this version reads 4"):
        RunStore.open(tmp_path / "run")


def test_episodes_are_found_by_step_and_kind(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    """The filters of `episodes` combine, and None does not filter."""
    with RunStore.create(tmp_path, "run", "") as store:
        store.add_episode(make_episode(1), step=0)
        store.add_episode(make_episode(2), step=1)
        store.add_episode(make_episode(3, is_eval=True), step=1)
        assert [episode.id for episode in store.episodes(step=1)] == ["ep-2", "ep-3"]
        assert [episode.id for episode in store.episodes(step=1, is_eval=False)] == ["ep-2"]
        assert [episode.id for episode in store.episodes(is_eval=True)] == ["ep-3"]
        assert [row["reward"] for row in store.episode_rows()] == [1.0, 1.0, 1.0]
        assert store.episode("ep-2") == make_episode(2)


WRITER = """
import sys
from ludus.runs.store import RunStore
from ludus.types import Episode, Outcome, SessionRecord
with RunStore.create(sys.argv[1], "run", "") as store:
    for number in range(10**6):
        session = SessionRecord(f"s{number}", (), ())
        store.add_episode(Episode(f"e{number}", "t", "g", session, {}, Outcome("ok")), step=0)
        store.add_metrics(number, {"reward/mean": number})
        print(number, flush=True)
"""


def test_acknowledged_episodes_survive_kill_9(tmp_path: Path) -> None:
    """A writer killed in the middle of its work has lost no episode whose `add_episode` returned."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    acknowledged = -1
    while acknowledged < 25:
        acknowledged = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    acknowledged = max([acknowledged, *(int(line) for line in writer.stdout if line.endswith("\n"))])
    writer.wait()
    writer.stdout.close()
    with RunStore.open(tmp_path / "run") as store:
        found = {episode.id for episode in store.episodes()}
        assert {f"e{number}" for number in range(acknowledged + 1)} <= found
        assert len(store.metrics()) >= acknowledged + 1
        store.add_metrics(10**7, {"x": 1.0})  # the dead writer's lock is gone


def test_threads_write_side_by_side(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    """Episodes that finish on several threads at once are all there."""
    with RunStore.create(tmp_path, "run", "") as store:
        jobs = [threading.Thread(target=store.add_episode, args=(make_episode(seed),)) for seed in range(16)]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        assert sorted(episode.id for episode in store.episodes()) == sorted(f"ep-{seed}" for seed in range(16))


def test_metrics_of_one_step_are_one_row(tmp_path: Path) -> None:
    """Later lines win, steps are sorted, and a line cut short by a crash harms neither neighbour."""
    with RunStore.create(tmp_path, "run", "") as store:
        store.add_metrics(1, {"a": 1.0, "b": 2.0})
        store.add_metrics(0, {"a": float("nan")})
        with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
            file.write('{"step": 7, "a"')
        store.add_metrics(1, {"b": 3.0})
        rows = store.metrics()
    assert [step for step, _ in rows] == [0, 1]
    assert rows[1][1] == {"a": 1.0, "b": 3.0}


def test_credit_tells_advantage_from_mask(tmp_path: Path) -> None:
    """A turn has an advantage or a mask reason, never both; the last step's word counts."""
    with RunStore.create(tmp_path, "run", "") as store:
        store.add_credit(0, {"t0": 0.0, "t1": "no_credit"})
        store.add_credit(1, {"t1": -1.5})
        assert store.credit() == {"t0": 0.0, "t1": -1.5}


def test_summary_says_that_the_run_has_ended(tmp_path: Path) -> None:
    """There is no summary before the end, and the whole one after it."""
    with RunStore.create(tmp_path, "run", "seed: 1\n") as store:
        assert store.summary() is None
        store.write_summary({"ledger": {}})
        assert store.summary() == {"ledger": {}}
        assert store.config_text == "seed: 1\n"


def test_a_run_is_not_begun_twice(tmp_path: Path) -> None:
    """The second run of a name is refused, with both ways out."""
    with RunStore.create(tmp_path, "run", "") as store:
        store.write_summary({})
    with pytest.raises(UserError, match=r"already finished.*--resume.*another name"):
        RunStore.create(tmp_path, "run", "")


def test_a_run_that_goes_on_has_its_configuration(tmp_path: Path) -> None:
    """config.yaml is the latest; what it was until a step stays beside it, and the summary of the earlier end goes."""
    texts = [f"model: {{}}\nsteps: {steps}\n" for steps in (3, 5, 6)]
    with RunStore.create(tmp_path, "run", texts[0]) as store:
        store.write_summary({"ledger": {}})
    for text in texts:
        with RunStore.go_on(tmp_path / "run", text, step=3) as store:
            assert store.config_text == text and store.summary() is None
    kept = {path.name: path.read_text() for path in (tmp_path / "run").glob("config*")}
    assert kept.pop("config.yaml").endswith(f"\n{texts[-1]}") and kept == {"config.until-000003.yaml": texts[0]}


def test_what_came_after_the_step_that_a_run_goes_on_from_is_void(tmp_path: Path) -> None:
    """Metrics of later steps are gone until these are trained again, and are not missed."""
    with RunStore.create(tmp_path, "run", "model: {}\n") as store:
        for step in range(5):
            store.add_metrics(step, {"a": step, "b": step})
            store.add_credit(step, {f"t{step}": 1.0})
        store.add_credit(5, {"t5": 1.0})  # a crash came before its metrics
    with RunStore.go_on(tmp_path / "run", "model: {}\n", step=2) as store:
        assert [step for step, _ in store.metrics()] == [0, 1, 2] and store.damages() == []
        assert store.metrics()[2][1] == {"a": 2.0, "b": 2.0}
        store.add_metrics(3, {"a": 30.0})
        assert store.metrics()[3:] == [(3, {"a": 30.0})]
        assert outline(store.folder, "run")["num_steps"] == 3
    with RunStore.go_on(tmp_path / "run", "model: {}\n", step=0) as store:
        assert [step for step, _ in store.metrics()] == [0]


def test_a_run_has_one_writer(tmp_path: Path) -> None:
    """While one store writes a run, another may read it but not write it."""
    with RunStore.create(tmp_path, "run", ""), RunStore.open(tmp_path / "run") as reader:
        assert reader.num_episodes == 0
        with pytest.raises(UserError, match="another process is writing"):
            reader.add_metrics(0, {})
    with RunStore.open(tmp_path / "run") as successor:
        successor.add_metrics(0, {})


def test_what_is_not_a_run_is_named(tmp_path: Path) -> None:
    """Opening a folder that is no run names the runs beside it."""
    RunStore.create(tmp_path, "guess-1", "").close()
    with pytest.raises(UserError, match=r"is not there; runs beside it: guess-1"):
        RunStore.open(tmp_path / "guess-2")


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    """A run folder that cannot be made ends in one sentence with the folder, the cause and the way out."""
    (tmp_path / "runs").write_text("")
    with pytest.raises(UserError, match=r"cannot create the run folder in '.*runs/x'.*run_root="):
        RunStore.create(tmp_path / "runs", "x", "")


@contextmanager
def _files_at_most(num_bytes: int) -> Iterator[None]:
    """Writing past `num_bytes` into any file fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_named_and_loses_nothing(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    """When the disk is full the error says so, earlier episodes stay, and writing goes on once there is room."""
    with RunStore.create(tmp_path, "run", "") as store:
        store.add_episode(make_episode(1))
        room = (tmp_path / "run" / "run.db-wal").stat().st_size + 100
        with _files_at_most(room), pytest.raises(UserError, match=r"cannot write an episode in '.*run'.*disk"):
            store.add_episode(make_episode(2))
        store.add_episode(make_episode(3))
        assert [episode.id for episode in store.episodes()] == ["ep-1", "ep-3"]
