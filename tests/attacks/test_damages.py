"""Damage to every file of a run's folder: what is said, what is still read, what `--resume` makes of it.

Each is done to a copy of a run of three steps, with a checkpoint of each, a branch from one of its turns and an open
session in its journal. One had ended; one was killed while SQLite had all of its records in a journal of its own yet.
Whatever the damage, who goes on ends in the weights of the run that nobody disturbed, or is refused with the reason.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import ludus
from ludus.checks.verify.training import LettersAgent
from ludus.cli.app import run as run_command
from ludus.config import Config
from ludus.errors import UserError
from ludus.runs.codec import encode_episode
from ludus.runs.folder import trained_model
from ludus.runs.journal import Journal
from ludus.runs.store import RunStore
from ludus.runs.tokens import read_tokens
from ludus.runs.watch.branches import Branches
from ludus.runs.watch.question import BRANCH
from tests.runs.conftest import episode_of

ROWS = [{"question": f"What do you know about {number}?"} for number in range(5)]
NUM_STEPS, NUM_EPISODES, NUM_ANSWERS = 3, 6, 2
LAST = "checkpoints/step-000003"
PAGE = 4096
PAGE_OF_PROMISES = Path(__file__).parents[2] / "docs" / "promises.md"
OPEN = "session-99"
"""Was not ended when the process was; its episode has its id."""


def missing(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def empty(path: Path) -> None:
    os.truncate(path, 0)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flipped(path: Path) -> None:
    middle = path.stat().st_size // 2
    overwrite(path, middle, bytes([path.read_bytes()[middle] ^ 0x80]))


def all_flipped(path: Path) -> None:
    for each in path.rglob("*.*"):
        flipped(each)


def foreign(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(9000))


def without_header(path: Path) -> None:
    overwrite(path, 0, bytes(100))


def of_an_episode(path: Path) -> int:
    """Where a page of episodes begins."""
    return (path.stat().st_size // PAGE // 2 + 1) * PAGE


def without_a_page(path: Path) -> None:
    overwrite(path, of_an_episode(path), bytes(PAGE))


def flipped_page(path: Path) -> None:
    begin = of_an_episode(path)
    overwrite(path, begin, bytes([path.read_bytes()[begin] ^ 0x80]))


def without_the_tables(path: Path) -> None:
    overwrite(path, PAGE, bytes(3 * PAGE))


def with_a_changed_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"step": "two"}\n' + lines[-1])


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


WORDS: dict[Callable[[Path], None], str] = {
    missing: "missing",
    empty: "empty",
    cut: "cut in half",
    flipped: "a bit flipped",
    flipped_page: "a bit flipped",
    foreign: "another program's",
    without_header: "no header",
    without_a_page: "a page of zeros",
    without_the_tables: "three pages of zeros",
    with_a_changed_line: "a line changed",
    all_flipped: "a bit of every file flipped",
}


@dataclass(frozen=True)
class Damage:
    file: str
    how: Callable[[Path], None]
    says: str = ""
    """Is told to who looks, in these words and more. Empty: nothing is missed."""
    goes_on: str = ""
    """Is told to who goes on, beside that; or with what it is refused."""
    episodes: int = NUM_EPISODES + 1
    """That are there in the end of those that were: the run's, and the one that was open."""
    steps: int = NUM_STEPS
    """Whose metrics can be read."""
    goes_on_from: int | None = NUM_STEPS
    """None: it is refused."""
    was_killed: bool = False
    answers: int = NUM_ANSWERS
    """Of the branch, that are shown."""

    def __str__(self) -> str:
        return f"{self.file}, {WORDS[self.how]}{', killed' if self.was_killed else ''}"

    @property
    def outcome(self) -> tuple[str, str]:
        """Cells of the table in docs/promises.md, before and behind what was done."""
        told = "; ".join(f"“{each}”" for each in (self.says, self.goes_on) if each) or "nothing"
        lost = [f"{NUM_EPISODES + 1 - self.episodes} of 7 episodes"] if self.episodes <= NUM_EPISODES else []
        lost += [f"metrics of {NUM_STEPS - self.steps} of 3 steps"] if self.steps < NUM_STEPS else []
        lost += ["what the loss used of the tokens of step 2"] if self.file == TOKENS else []
        lost += [f"{NUM_ANSWERS - self.answers} of 2 answers"] if self.answers < NUM_ANSWERS else []
        lost += ["which answers were chosen"] if self.file == CHOSEN else []
        goes_on = "refused" if self.goes_on_from is None else f"from step {self.goes_on_from}"
        state = ", of a run that was killed" if self.was_killed else ""
        return f"| `{self.file}`{state} | ", f" | {told} | {', '.join(lost) or 'nothing'} | {goes_on} |"


NO_CHECKSUM = "config.yaml is damaged: its lines are not those that the first one has the checksum of"
NO_FORMAT = "run.db is damaged (its header names no format): 0 episodes"
NO_SUMMARY = "summary.json is damaged"
KNEW = "of the 6 episodes that the checkpoint of step 3 knew of"
AGAIN = "what it learned after step 2 is learned again"
TOKENS = "tokens/step-000002.bin"
STAYS_AWAY = ("metrics.jsonl", "tokens/ ")
"""What nobody writes again, and is said whoever looks."""
TRAINER = f"{LAST}/trainer"
CHOSEN = "branches/chosen.json"
NO_CHOICES = "chosen.json' is damaged: it is no list of episodes"
CHANGED = "does not hold what was written. Going on from step 2"
DAMAGES = [
    Damage("config.yaml", missing, "config.yaml is missing"),
    Damage("config.yaml", empty, "config.yaml is damaged: it names no model"),
    Damage("config.yaml", cut, NO_CHECKSUM),
    Damage("config.yaml", flipped, NO_CHECKSUM),
    Damage("run.db", missing, "run.db is missing: 0 episodes", f"run.db holds 1 {KNEW}", episodes=1),
    Damage("run.db", empty, "run.db is empty: 0 episodes", f"run.db holds 1 {KNEW}", episodes=1),
    Damage("run.db", cut, "run.db is damaged (database disk image is malformed)", f"run.db holds 1 {KNEW}", episodes=1),
    Damage("run.db", flipped_page, "run.db is damaged (Page 8: btreeInitPage() returns error code 11)", episodes=6),
    Damage("run.db", foreign, "run.db is damaged (file is not a database)", f"run.db holds 1 {KNEW}", episodes=1),
    Damage("run.db", without_header, "run.db is damaged (file is not a database): 6 episodes"),
    Damage("run.db", without_a_page, "run.db is damaged (Page 8: btreeInitPage()", episodes=6),
    Damage("run.db", without_the_tables, "run.db is damaged (Page 2", f"run.db holds 1 {KNEW}", episodes=1),
    Damage("run.db", missing, "run.db is missing: 6 episodes of it can be read", was_killed=True),
    Damage("run.db", foreign, was_killed=True),
    Damage("run.db-wal", missing, NO_FORMAT, f"run.db holds 1 {KNEW}", 1, was_killed=True),
    Damage("run.db-wal", empty, NO_FORMAT, f"run.db holds 1 {KNEW}", 1, was_killed=True),
    Damage("run.db-wal", cut, "", f"run.db holds 3 {KNEW}", episodes=3, was_killed=True),
    Damage("run.db-wal", flipped, "", f"run.db holds 3 {KNEW}", episodes=3, was_killed=True),
    Damage("run.db-shm", foreign, was_killed=True),
    Damage("journal/*.turns", missing, episodes=6),
    Damage("journal/*.turns", cut, "is damaged: turns of open sessions are lost"),
    Damage("journal/*.turns", flipped, "is damaged: turns of open sessions are lost"),
    Damage("metrics.jsonl", missing, "metrics.jsonl has nothing of 3 steps, of which the first is 1", steps=0),
    Damage("metrics.jsonl", empty, "metrics.jsonl has nothing of 3 steps, of which the first is 1", steps=0),
    Damage("metrics.jsonl", cut, "metrics.jsonl has nothing of 2 steps, of which the first is 2", steps=1),
    Damage("metrics.jsonl", flipped, "metrics.jsonl is damaged: 1 of its lines cannot be read", steps=2),
    Damage("metrics.jsonl", with_a_changed_line, "metrics.jsonl is damaged: 1 of its lines cannot be read", steps=2),
    Damage(TOKENS, missing, "tokens/ has nothing of 1 steps, of which the first is 2"),
    Damage(TOKENS, empty, f"{TOKENS} is damaged: it does not hold what was written"),
    Damage(TOKENS, cut, f"{TOKENS} is damaged: it does not hold what was written"),
    Damage(TOKENS, flipped, f"{TOKENS} is damaged: it does not hold what was written"),
    Damage("summary.json", missing),
    Damage("summary.json", empty, NO_SUMMARY),
    Damage("summary.json", cut, NO_SUMMARY),
    Damage("summary.json", flipped, NO_SUMMARY),
    Damage("checkpoints", missing, "", "what it learned after step 0 is learned again", goes_on_from=0),
    Damage("checkpoints", all_flipped, "", "is whole: checkpoint step-000003: progress.json", goes_on_from=None),
    Damage(LAST, missing, "", AGAIN, goes_on_from=2),
    Damage(f"{LAST}/progress.json", missing, "", "step-000003: progress.json is missing", goes_on_from=2),
    Damage(f"{LAST}/progress.json", empty, "", f"progress.json {CHANGED}", goes_on_from=2),
    Damage(f"{LAST}/progress.json", cut, "", f"progress.json {CHANGED}", goes_on_from=2),
    Damage(f"{LAST}/progress.json", flipped, "", f"progress.json {CHANGED}", goes_on_from=2),
    Damage(f"{TRAINER}/trainer.json", missing, "", "trainer/trainer.json is missing", goes_on_from=2),
    Damage(f"{TRAINER}/trainer.json", empty, "", f"trainer/trainer.json (0 bytes) {CHANGED}", goes_on_from=2),
    Damage(f"{TRAINER}/trainer.json", flipped, "", CHANGED, goes_on_from=2),
    Damage(f"{TRAINER}/*.safetensors", missing, "", "00001-of-00001.safetensors is missing", goes_on_from=2),
    Damage(f"{TRAINER}/*.safetensors", empty, "", f".safetensors (0 bytes) {CHANGED}", goes_on_from=2),
    Damage(f"{TRAINER}/*.safetensors", cut, "", CHANGED, goes_on_from=2),
    Damage(f"{TRAINER}/*.safetensors", flipped, "", CHANGED, goes_on_from=2),
    Damage("checkpoints/step-000002/progress.json", cut),
    Damage("model", missing, "has no trained model yet"),
    Damage("model/model.safetensors", missing, "model.safetensors is missing"),
    Damage("model/model.safetensors", empty, "model.safetensors (0 bytes) does not hold what was written"),
    Damage("model/model.safetensors", cut, "does not hold what was written"),
    Damage("model/model.safetensors", flipped, "does not hold what was written"),
    Damage("model/config.json", cut, "config.json (356 bytes) does not hold what was written"),
    Damage("model/tokenizer.json", missing, "tokenizer.json is missing"),
    Damage("branches", missing, answers=0),
    Damage("branches/run.db", missing, "branches: run.db is missing: 0 episodes", answers=0),
    Damage("branches/run.db", empty, "branches: run.db is empty: 0 episodes", answers=0),
    Damage("branches/run.db", cut, "branches: run.db is damaged (database disk image is malformed)", answers=0),
    Damage("branches/run.db", foreign, "branches: run.db is damaged (file is not a database)", answers=0),
    Damage("branches/run.db", without_header, "branches: run.db is damaged (file is not a database): 2 episodes"),
    Damage(CHOSEN, missing),
    Damage(CHOSEN, empty, NO_CHOICES),
    Damage(CHOSEN, cut, NO_CHOICES),
    Damage(CHOSEN, flipped, NO_CHOICES),
    Damage("writer.lock", missing),
]


def copy_of(folder: Path, to: Path, damage: Damage) -> Path:
    run = Path(shutil.copytree(folder, to / folder.name))
    journal, episode = Journal(run), episode_of(99)
    journal.info(episode.session.id, {"task_id": "open"})
    for idx, turn in enumerate(episode.session.turns):
        journal.add_turn(episode.session.id, episode.session.nodes[2 * idx : 2 * idx + 2], turn)
    journal.close()
    damage.how(next(iter(run.glob(damage.file))))
    return run


def branch_from(run: Path) -> None:
    """Somebody has gone back to a turn, had two answers, and chosen both."""
    about = {"from": {"episode": "0", "turn": "0"}, "model": "base", "edit": None, "created_at": 0.0}
    answers = [replace(episode_of(200 + number), task_id=BRANCH) for number in range(NUM_ANSWERS)]
    with RunStore.create(run, "branches", "model: {path: nowhere}\n") as store:
        for each in answers:
            store.add_episode(replace(each, group_id="branch", metadata={BRANCH: about}))
    (run / CHOSEN).write_text(json.dumps([each.id for each in answers]))


class Watcher(ludus.Observer):
    """Remembers the steps, and copies the run when it has ended and nothing of it is closed: as if it was killed."""

    def __init__(self, copy: Path | None = None) -> None:
        self.copy = copy
        self.steps: list[int] = []

    def on_step(self, step: int, metrics: Any) -> None:
        self.steps.append(step)

    def on_end(self, summary: ludus.RunSummary) -> None:
        if self.copy is not None:
            shutil.copytree(summary.run, self.copy)


def config_of(model: Path, root: Path) -> Config:
    values: dict[str, Any] = {
        "name": "run",
        "run_root": str(root),
        "model": {"path": str(model), "dtype": "float32"},
        "engine": {"kv_bytes": 2**22},
        "gconfig": {"n_samples": 2, "max_new_tokens": 4},
        "train_dataset": {"batch_size": 1},
        "trainer": {"optimizer": {"lr": 1e-3}},
        "checkpoint": {"every_steps": 1, "keep": NUM_STEPS},
        "total_train_steps": NUM_STEPS,
    }
    return Config(**values)


@pytest.fixture(scope="module")
def root(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the runs that stand: `ended/run` and `killed/run`."""
    root = tmp_path_factory.mktemp("runs")
    observer = Watcher(root / "killed" / "run")
    ludus.Trainer(config_of(tiny_model_folder, root / "ended"), ROWS).train(LettersAgent, observer=observer)
    for state in ("ended", "killed"):
        branch_from(root / state / "run")
    return root


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_damage_has_its_sentence_and_costs_no_more_than_it_must(
    damage: Damage,
    root: Path,
    tiny_model_folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Who looks is told, and sees all that can be read; who goes on ends in the weights of the run undisturbed."""
    undisturbed = root / "ended" / "run"
    run = copy_of(root / ("killed" if damage.was_killed else "ended") / "run", tmp_path, damage)
    with RunStore.open(undisturbed) as store:
        originals = {encode_episode(episode) for episode in store.episodes()}

    with same_loggers():
        assert run_command(["report", str(run)]) == run_command(["export", str(run)]) == 0
    with RunStore.open(run) as store:
        assert {encode_episode(episode) for episode in store.episodes() if episode.id != OPEN} <= originals
        assert len(store.metrics()) == damage.steps
        branches = Branches(run, lambda: None)
        damages = store.damages() + branches.damages()
        assert ('"damage":[]' not in (run / "report.html").read_text()) == bool(damages)
    samples = [each for branch in branches.listed() for each in branch["samples"]]
    assert len(samples) == damage.answers
    assert sum(each["chosen"] for each in samples) == (0 if damage.file == CHOSEN else damage.answers)
    heard = f"{capsys.readouterr().err} {caplog.text} {' '.join(damages)}"
    told = f"{heard} {why_not(trained_model, run)} {why_not(tokens_of, run)}"
    assert damage.says in " ".join(told.split())
    assert damage.says or "damaged" not in told
    caplog.clear()

    observer, trainer = Watcher(), ludus.Trainer(config_of(tiny_model_folder, tmp_path), ROWS)
    if damage.goes_on_from is None:
        assert damage.goes_on in why_not(lambda _: trainer.train(LettersAgent, resume=True), run)
        return
    trainer.train(LettersAgent, resume=True, observer=observer)
    assert damage.goes_on in caplog.text
    assert observer.steps == [*range(damage.goes_on_from + 1, NUM_STEPS + 1)]
    assert weights_of(run) == weights_of(undisturbed) and trained_model(run)
    with RunStore.open(run) as store:
        kept = [each for each in store.episodes() if each.id == OPEN or encode_episode(each) in originals]
        assert len(kept) == damage.episodes
        assert not [each for each in store.damages() if not each.startswith(STAYS_AWAY)]


def test_the_page_has_every_damage() -> None:
    """The table in docs/promises.md is made of this list; what is missing there is written below."""
    done: dict[tuple[str, str], list[str]] = {}
    for damage in DAMAGES:
        done.setdefault(damage.outcome, []).append(WORDS[damage.how])
    rows = [before + ", ".join(words) + behind for (before, behind), words in done.items()]
    written = [line for line in PAGE_OF_PROMISES.read_text(encoding="utf-8").splitlines() if line in rows]
    assert written == rows, "\n".join(rows)


@contextmanager
def same_loggers() -> Iterator[None]:
    """A command says on stderr what is logged; afterwards the test hears it again."""
    ours = logging.getLogger("ludus")
    before = ours.handlers, ours.propagate, ours.level
    yield
    ours.handlers, ours.propagate = before[:2]
    ours.setLevel(before[2])


def why_not(what: Callable[[Path], object], run: Path) -> str:
    """With which words it is refused; none if it is not."""
    try:
        what(run)
    except UserError as error:
        return str(error)
    return ""


def tokens_of(run: Path) -> None:
    for step in range(1, NUM_STEPS + 1):
        read_tokens(run, step)


def weights_of(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()
