"""A run's tables hold what its records hold, while it is written too, and change nothing."""

from __future__ import annotations

import math
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

import ludus
from ludus.errors import UserError
from ludus.runs.store import RunStore
from ludus.runs.tokens import TokenColumns, path_of
from ludus.types import Episode

MakeEpisode = Callable[..., Episode]


@pytest.fixture
def run(tmp_path: Path, make_episode: MakeEpisode) -> RunStore:
    """Two steps of one episode each, and one episode of no step; it is still being written."""
    store = RunStore.create(tmp_path, "run", "model:\n  path: nowhere/at-all\n")
    for number in (1, 2):
        episode = make_episode(number)
        store.add_episode(episode, step=number)
        first, *others = (turn.id for turn in episode.session.turns)
        store.add_credit(number, {first: "stale"} | dict.fromkeys(others, 0.5 * number))
        store.add_metrics(number, {"rollout/reward": number / 2})
    store.add_metrics(2, {"eval/reward": 0.25})
    store.add_episode(make_episode(3, reward=None, is_eval=True))
    return store


def test_steps_are_rows_and_metrics_columns(run: RunStore) -> None:
    """Indexed by step; what a step did not measure is NaN."""
    steps = ludus.load_run(run.folder).steps()
    assert list(steps.index) == [1, 2] and steps.index.name == "step"
    assert list(steps["rollout/reward"]) == [0.5, 1.0]
    assert math.isnan(steps.loc[1, "eval/reward"]) and steps.loc[2, "eval/reward"] == 0.25


def test_tokens_are_those_of_the_records(run: RunStore) -> None:
    """Every sampled token once, with its logprob to the last bit; advantages and masks are those of its turn."""
    tokens = ludus.load_run(run.folder).tokens()
    recorded = [
        (episode.id, turn.id, token, logprob)
        for episode in run.episodes()
        for turn in episode.session.turns
        for token, logprob in zip(turn.sampled.token_ids, turn.sampled.logprobs, strict=True)
    ]
    assert list(tokens[["episode_id", "turn_id", "token_id", "logprob"]].itertuples(index=False, name=None)) == recorded
    credit: dict[str, float | str] = run.credit() | dict.fromkeys(
        (turn.id for turn in run.episode("ep-3").session.turns), "evaluation"
    )
    for row in tokens.itertuples():
        assert credit[row.turn_id] == (row.advantage if isinstance(credit[row.turn_id], float) else row.mask)


def test_tokens_have_what_their_loss_used(run: RunStore, caplog: pytest.LogCaptureFixture) -> None:
    """Each trained token its own numbers, others none; a record that is damaged costs these numbers, and is named."""
    first, second = run.episode("ep-2").session.turns[1:3]
    count = len(first.sampled.token_ids)
    columns = {name: array("f", range(count)).tobytes() for name in ("loss", "weight", "trained_logprob", "advantage")}
    run.add_tokens(2, TokenColumns([(7, count)], columns), {7: (first.id, range(count))})
    tokens = ludus.load_run(run.folder).tokens(step=2)
    of_first = tokens[tokens["turn_id"] == first.id]
    assert list(of_first["loss"]) == list(of_first["advantage"]) == [*map(float, range(count))]
    assert tokens[tokens["turn_id"] == second.id]["loss"].isna().all() and tokens["ratio"].isna().all()
    path_of(run.folder, 2).write_bytes(b"damaged")
    assert ludus.load_run(run.folder).tokens(step=2)["loss"].isna().all()
    assert "tokens/step-000002.bin is damaged" in caplog.text


def test_turns_and_episodes_of_a_step(run: RunStore) -> None:
    """The step that asked for an episode stands beside it; tables of one step hold its episodes alone."""
    loaded = ludus.load_run(run.folder)
    episodes, turns = loaded.episodes(), loaded.turns(step=2)
    assert list(episodes["id"]) == ["ep-1", "ep-2", "ep-3"] and episodes["step"].isna().tolist() == [False, False, True]
    assert set(turns["episode_id"]) == {"ep-2"} and set(turns["step"]) == {2}
    assert list(turns["number"]) == [1, 2, 3] and turns["mask"][0] == "stale" and list(turns["advantage"][1:]) == [1, 1]
    assert list(episodes[episodes["is_eval"]]["id"]) == ["ep-3"] and len(episodes[~episodes["is_eval"]]) == 2
    assert turns["prompt"][0].startswith("system: Guess") and list(turns["num_tokens"]) == [
        len(turn.sampled.token_ids) for turn in loaded.episode("ep-2").session.turns
    ]


def test_a_run_is_looked_at_while_another_process_may_write_it(run: RunStore, make_episode: MakeEpisode) -> None:
    """New episodes are in the next table; the writer is not held up, and nothing can be written by who looks."""
    with ludus.load_run(run.folder) as loaded:
        assert len(loaded.episodes()) == 3
        run.add_episode(make_episode(4), step=3)
        assert len(loaded.episodes()) == 4
        assert "4 episodes, not ended" in repr(loaded) and "rollout/reward" in loaded._repr_html_()
    with RunStore.look(run.folder) as reader, pytest.raises(UserError):
        reader.add_episode(make_episode(5))


def test_an_empty_run_has_empty_tables(tmp_path: Path) -> None:
    """With the columns that they will have."""
    RunStore.create(tmp_path, "run", "").close()
    loaded = ludus.load_run(tmp_path / "run")
    assert loaded.steps().empty and loaded.turns().empty
    assert {"token_id", "logprob"} <= set(loaded.tokens().columns) and loaded.summary is None and loaded.config == {}


def test_what_is_missing_is_said(tmp_path: Path, run: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a run, and an environment without pandas."""
    with pytest.raises(UserError, match="is not the folder of a run"):
        ludus.load_run(tmp_path / "other")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"ludus\[frames\]"):
        ludus.load_run(run.folder).steps()


LEFT_OPEN = """
import atexit, os, sys

def of_the_run():
    found = set()
    for each in os.listdir("/proc/self/fd"):
        try:
            found.add(os.path.basename(os.readlink(f"/proc/self/fd/{each}")))
        except FileNotFoundError:  # the descriptor that lists them
            pass
    return sorted(name for name in found if name.startswith("run.db"))

atexit.register(lambda: print("at the end", of_the_run()))  # registered first, so it is called last
import gc, ludus

ludus.load_run(sys.argv[1]).steps()
print("dropped", of_the_run())
run = ludus.load_run(sys.argv[1])
run.itself = run  # as a traceback or a notebook's history may hold it
del run
gc.collect()
print("collected", of_the_run())
with ludus.load_run(sys.argv[1]) as run:
    assert of_the_run()
print("left", of_the_run())
run = ludus.load_run(sys.argv[1])
run.tokens()
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not tell of open files")
def test_nothing_is_left_open(run: RunStore) -> None:
    """By who drops it, leaves its block, or never does either: from Python 3.13 on a connection that is left to its end
    is warned of."""
    program = [sys.executable, "-X", "dev", "-c", LEFT_OPEN, str(run.folder)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["dropped []", "collected []", "left []", "at the end []"]
    assert "ResourceWarning" not in done.stderr
