"""A damaged run.db: what is wrong is said, what can be read is there, nothing is overwritten."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ludus.errors import UserError
from ludus.processes.checksums import checksums
from ludus.runs.codec import encode_episode
from ludus.runs.folder import config_text, read_config, trained_model, write_config
from ludus.runs.store import RunStore
from ludus.types import Episode

NUM_EPISODES = 60
CONFIG = "model: {}\n"
Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, make_episode: Callable[..., Episode]) -> Path:
    """A run of sixty episodes, on some forty pages."""
    root = tmp_path_factory.mktemp("whole")
    with RunStore.create(root, "run", CONFIG) as store:
        for seed in range(NUM_EPISODES):
            episode = make_episode(seed, num_turns=4)
            store.add_episode(episode, step=1 + seed // 20)
            store.add_credit(1 + seed // 20, {turn.id: 0.5 for turn in episode.session.turns})
        for step in (1, 2, 3):
            store.add_metrics(step, {"rollout/reward": 0.5})
    return root / "run"


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("damage", "said", "least"),
    [
        (half, "is damaged", 10),
        (lambda path: os.truncate(path, 0), "is empty: 0 episodes", 0),
        (Path.unlink, "is missing: 0 episodes", 0),
        (lambda path: path.write_text("not a database, but something else\n" * 200), "is damaged (file is not", 0),
        (lambda path: path.write_bytes(random.Random(0).randbytes(9000)), "is damaged (file is not", 0),
        (lambda path: overwrite(path, 3, b"X"), "is damaged (file is not a database): 60 episodes", 60),
        (lambda path: overwrite(path, 16, b"\x01"), "is damaged (file is not a database): 60 episodes", 60),
        (lambda path: overwrite(path, 60, b"\x7f\xff\xff\xff"), "is damaged", 60),
        (lambda path: overwrite(path, path.read_bytes().index(b"CREATE TABLE"), b"TEAR"), "is damaged (malformed", 60),
        (lambda path: overwrite(path, 4096, bytes(16)), "is damaged", 0),
        (lambda path: overwrite(path, 10 * 4096, bytes(4096)), "is damaged", 40),
    ],
)
def test_what_can_be_read_of_a_damaged_file(damage: Damage, said: str, least: int, run: Path, whole: Path) -> None:
    """Its sentence, the episodes that are as they were written and no others; a run that goes on keeps the file."""
    damage(run / "run.db")
    damaged = (run / "run.db").read_bytes() if (run / "run.db").exists() else None
    with RunStore.open(whole) as store:
        originals = {encode_episode(episode) for episode in store.episodes()}
    with RunStore.open(run) as store:
        (sentence,) = store.damages()
        assert said in sentence
        found = [encode_episode(episode) for episode in store.episodes()]
        assert len(found) >= least and set(found) <= originals and len(set(found)) == len(found)
        assert len(store.episode_rows()) == len(found) and len(store.metrics()) == 3
    with RunStore.go_on(run, CONFIG, step=3) as store:
        assert [encode_episode(episode) for episode in store.episodes()] == found
        assert store.damages() == []
    kept = run / "damaged-run.db"
    assert (kept.read_bytes() if kept.exists() else None) == damaged
    with RunStore.open(run) as store:
        assert store.damages() == [] and store.num_episodes == len(found)


def test_any_flipped_byte_is_found_or_harmless(run: Path, whole: Path) -> None:
    """Bytes anywhere in the file: every episode that is read is as it was added, and one byte costs at most a page."""
    with RunStore.open(whole) as store:
        originals = [encode_episode(episode) for episode in store.episodes()]
    rng, content = random.Random(1), (run / "run.db").read_bytes()
    for number in range(90):
        changed = bytearray(content)
        changed[rng.randrange(len(content) if number % 3 else 4096)] ^= 1 << rng.randrange(8)
        (run / "run.db").write_bytes(changed)
        with RunStore.open(run) as store:
            found = [encode_episode(episode) for episode in store.episodes()]
            assert set(found) <= set(originals)
            assert len(found) == len(originals) or store.damages()


def test_a_run_without_any_record_is_not_begun_anew(run: Path) -> None:
    """A name whose run.db is gone is still taken: what else is there would be overwritten."""
    (run / "run.db").unlink()
    with pytest.raises(UserError, match="already begun"):
        RunStore.check_free(run.parent, "run")


def test_a_trained_model_is_the_one_that_was_saved(run: Path) -> None:
    """A changed file is named with the command that saves it again; without a readable summary it cannot be said."""
    with pytest.raises(UserError, match="has no trained model yet"):
        trained_model(run)
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text("{}")
    with RunStore.open(run) as store:
        store.write_summary({"ledger": {}, "model_files": checksums(run / "model")})
    assert trained_model(run) == run / "model"
    (run / "model" / "config.json").write_text("{ }")
    with pytest.raises(UserError, match=r"is damaged: config.json \(3 bytes\).*--resume"):
        trained_model(run)
    (run / "summary.json").write_text("")
    assert trained_model(run) == run / "model"


def test_a_configuration_is_whole_or_edited(run: Path) -> None:
    """A part of it is a configuration too, and is not taken for it; who edits it takes the checksum's line away."""
    write_config(run, "model: {path: x}\nseed: 3\n")
    assert read_config(run) == {"model": {"path": "x"}, "seed": 3}
    written = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(written.removesuffix("seed: 3\n"))
    with pytest.raises(UserError, match=r"config.yaml is damaged: its lines are not those"):
        read_config(run)
    assert config_text(run) == "model: {path: x}\n"
    (run / "config.yaml").write_text("model: {path: x}\nseed: 4\n")
    assert read_config(run)["seed"] == 4


def test_a_crash_while_a_damaged_file_is_replaced_loses_nothing(run: Path) -> None:
    """What could be read is whole before the damaged file goes; who comes next finds it."""
    (run / "run.db").rename(run / "run.db.part")
    with RunStore.open(run) as store:
        assert store.damages() == [] and store.num_episodes == NUM_EPISODES


def test_small_files(run: Path) -> None:
    """Each of the others that is damaged has its sentence, and costs what was in it."""
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(lines[0] + b"\xff\xfe{}\n" + lines[2][:-4])
    (run / "summary.json").write_text("{")
    (run / "config.yaml").write_text("a: [")
    with RunStore.open(run) as store:
        assert [step for step, _ in store.metrics()] == [1] and store.summary() is None
        metrics, steps, config, summary = store.damages()
    assert metrics == "metrics.jsonl is damaged: 1 of its lines cannot be read"
    assert steps == "metrics.jsonl has nothing of 1 steps, of which the first is 2"
    assert config.startswith("config.yaml is damaged: ") and summary.startswith("summary.json is damaged: ")
    RunStore.go_on(run, CONFIG, step=3).close()
    assert (run / "damaged-config.yaml").read_text() == "a: ["
