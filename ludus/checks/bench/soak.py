"""Measures whether a gateway leaks memory, descriptors or threads over thousands of sessions, and its latencies.

Knows: the gateway with scripted answers in this process, its clients in another.  Knows not: peers, pairs.
Sessions are opened, recorded, rewarded and ended as with `ludus gateway`; each becomes an episode in a run's folder.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ludus.checks.bench.pairs import Runner
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.archive import RunArchive
from ludus.episodes.episodes import Episodes
from ludus.episodes.recorder import Recorder
from ludus.errors import BackendError, UserError
from ludus.gateway.app import GatewayOptions
from ludus.gateway.server import GatewayServer, calm_garbage_collection
from ludus.http.keys import new_key
from ludus.loop.memory import rss_mb
from ludus.runs.store import RunStore
from ludus.text.chat import ChatText

_REPLY = "There are nine lamps on it, and a box of screws that nobody has counted."
_EVERY_S = 0.5
_TOKEN_DELAY_S = 0.002
"""Delay of an engine with 500 tokens a second for each request, so that many streams are open at once."""


_LISTS = (Path("/proc/self/fd"), Path("/dev/fd"))
"""Where Linux and macOS list the open descriptors of the process that asks."""


@dataclass(frozen=True, slots=True)
class SoakWork:
    """Duration and size of a soak test."""

    model: str
    """Folder of the model whose tokenizer and template are used."""
    sessions: int
    seconds: float
    streams: int
    """Number of streams that are open at once at the end."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Look:
    """A measurement of this process."""

    at: float
    rss_mb: float
    descriptors: int
    threads: int
    sessions: int
    """Number of sessions ended so far."""


def measure_soak(work: SoakWork) -> dict[str, Any]:
    """Resources in use by number of sessions, and the latencies.

    Raises BackendError if a session was not recorded.
    """
    text = ChatText.load(Path(work.model))
    token_ids = text.tokenizer.encode(_REPLY)
    engine = ScriptedEngine(lambda _: token_ids, text.tokenizer, token_delay_s=_TOKEN_DELAY_S, keeps_calls=False)
    with tempfile.TemporaryDirectory(prefix="ludus-soak-") as folder, RunStore.create(folder, "soak", "") as store:
        episodes, admin_key = Episodes(Recorder(engine, text), RunArchive(store)), new_key()
        calm_garbage_collection()
        options = GatewayOptions(episodes=episodes, admin_key=admin_key)
        with GatewayServer(episodes.keys, options) as server, _looking(store) as looks:
            job = {**asdict(work), "url": server.base_url, "admin_key": admin_key}
            client = (sys.executable, str(Path(__file__).with_name("soak_client.py")))
            measured = Runner("the gateway's clients", client, job, "please report it").run()
        ended = sum(row["outcome"] == "ok" for row in store.episode_rows())
    if ended != work.sessions:
        raise BackendError(f"{work.sessions} sessions were ended, and {ended} are in the record; please report it")
    # the first tenth fills caches and thread pools
    steady = [look for look in looks if look.sessions >= work.sessions / 10]
    half = [look for look in steady if look.sessions < work.sessions]
    return {
        **measured,
        "rss_mb": looks[-1].rss_mb,
        "mb_per_1000_sessions": 1000 * _slope([look.sessions for look in half], [look.rss_mb for look in half]),
        "descriptors": [half[0].descriptors, half[-1].descriptors, max(look.descriptors for look in looks)],
        "threads": [half[0].threads, half[-1].threads, max(look.threads for look in looks)],
    }


@contextmanager
def _looking(store: RunStore) -> Iterator[list[_Look]]:
    """Measures this process repeatedly during the block; the list grows until the block ends."""
    looks, over, descriptors = list[_Look](), threading.Event(), list_of_descriptors()

    def look() -> None:
        while not over.wait(_EVERY_S):
            counts = len(os.listdir(descriptors)), threading.active_count()  # noqa: PTH208  (names alone)
            looks.append(_Look(time.perf_counter(), rss_mb(), *counts, store.num_episodes))

    looking = threading.Thread(target=look, name="soak", daemon=True)
    looking.start()
    try:
        yield looks
    finally:
        over.set()
        looking.join()


def list_of_descriptors(places: Sequence[Path] = _LISTS) -> Path:
    """The folder that lists what this process has open. Raises UserError if the system has none."""
    found = next((each for each in places if each.is_dir()), None)
    if found is None:
        raise UserError(f"nothing here lists open descriptors: neither {' nor '.join(map(str, places))} is there")
    return found


def _slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    return statistics.linear_regression(xs, ys).slope if len(set(xs)) > 1 else 0.0
