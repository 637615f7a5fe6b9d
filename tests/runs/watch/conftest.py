"""A run to look at, and a watcher of it with a client that has its key."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from ludus.runs.store import RunStore
from ludus.runs.watch.folder import RunsFolder
from ludus.runs.watch.question import Sampler
from ludus.runs.watch.server import open_watcher
from ludus.types import Outcome, Span
from tests.runs.conftest import episode_of, fill_run, rich_episode
from tests.runs.watch.big_run import write_step_tokens

CONFIG = """
name: run
model: {path: nowhere}
algorithm: {name: grpo}
rollout: {agent: {turn_discount: 1.0}, replay: {share: 0.25}}
"""
NUM_STEPS, PER_STEP = 12, 8


@dataclass(frozen=True)
class Watched:
    """A watcher, and who asks it."""

    client: httpx.Client
    folder: Path
    link: str

    def get(self, path: str, **given: object) -> dict[str, object]:
        answer = self.client.get(f"/api/{path}", params={name: str(value) for name, value in given.items()})
        assert answer.status_code == 200, answer.text
        return answer.json()


def write_run(root: Path, name: str = "run", *, num_steps: int = NUM_STEPS) -> Path:
    """Episodes of several outcomes, agents and tools, with credit, metrics, evaluations and tokens of step 3."""
    with RunStore.create(root, name, CONFIG) as store:
        fill_run(store, num_steps=num_steps, per_step=PER_STEP)
        rich = replace(rich_episode(), outcome=Outcome("failed", "KeyError: no such question"), is_eval=False)
        store.add_episode(replace(rich, spans=(Span("tool", "search", 1.5, 2.0, turn_id="t0"),)), step=3)
        for number in range(1000, 1040, 8):  # five tasks, played after the first step and after the last
            store.add_episode(episode_of(number + 1, reward=0.25, is_eval=True), step=0)
            store.add_episode(episode_of(number, reward=number / 2000, is_eval=True), step=num_steps - 1)
        turns = [turn for episode in store.episodes(step=3, is_eval=False) for turn in episode.session.turns]
        credit = store.credit()
        used = {turn.id: len(turn.sampled.token_ids) for turn in turns if isinstance(credit.get(turn.id), float)}
        loss = write_step_tokens(store.folder, 3, used)
        store.add_metrics(3, {"train/loss": loss})
    return store.folder


@contextmanager
def watching(folder: Path, *, sampler: Sampler | None = None) -> Iterator[Watched]:
    with open_watcher(RunsFolder(folder, sampler=sampler)) as link:
        key = parse_qs(urlsplit(link).query)["key"][0]
        with httpx.Client(base_url=link.partition("/?")[0], headers={"authorization": f"Bearer {key}"}) as client:
            yield Watched(client, folder, link)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_run(root)
    return root


@pytest.fixture(scope="module")
def watched(root: Path) -> Iterator[Watched]:
    """Of the one run; its episodes are all read."""
    with watching(root / "run") as watched:
        wait_until_read(watched)
        yield watched


def wait_until_read(watched: Watched) -> None:
    def is_read() -> bool:
        page = watched.get("runs/run/episodes")  # one answer: of two, the first may be from before any were listed
        return bool(page["total"]) and not page["num_unread"]

    wait_for(is_read)


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, "it did not come"
