"""What a gateway records while it serves: the run folder, its sessions, and what is said of both.

Knows: run folders, sessions, addresses.  Knows not: models, sockets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ludus.cli.names import free_name
from ludus.compat.config import Config
from ludus.episodes.archive import RunArchive
from ludus.episodes.episodes import IDLE_S, Episodes
from ludus.episodes.recorder import Recorder
from ludus.gateway.app import GatewayOptions, check_admin_key
from ludus.http.keys import is_loopback, new_key
from ludus.http.tls import Tls
from ludus.runs.exporters.select import open_exporter
from ludus.runs.store import RunStore

DEFAULT_ROOT = "runs"
DEFAULT_NAME = "gateway"


@dataclass(frozen=True, slots=True)
class Access:
    """Who may reach a gateway."""

    host: str
    admin_key: str | None
    """None: one is made."""
    is_open: bool
    """Any key opens a session."""
    tls: Tls | None = None
    """None: plain HTTP."""

    @classmethod
    def checked(cls, host: str, admin_key: str | None, is_open: bool | None, tls: Tls | None = None) -> Access:
        """Raises UserError where strangers could reach what only the admin may.

        is_open: None: where nobody but this machine reaches the gateway.
        """
        check_admin_key(host, admin_key)
        return cls(host, admin_key, is_loopback(host) if is_open is None else is_open, tls)


class Recording:
    """A run folder that takes the sessions of one gateway."""

    def __init__(self, store: RunStore, recorder: Recorder, access: Access, *, idle_s: float = IDLE_S) -> None:
        self.store = store
        self.episodes = Episodes(recorder, RunArchive(store), idle_s=idle_s)
        self.admin_key = access.admin_key or new_key()
        self.options = GatewayOptions(
            open_mode=self.episodes.open_for_key if access.is_open else None,
            episodes=self.episodes,
            admin_key=self.admin_key,
        )
        self._num_before = store.num_episodes

    def __repr__(self) -> str:
        return f"Recording({self.store!r}, {self.episodes!r})"

    def summary(self) -> str:
        """What was recorded, in one line."""
        rows = self.store.episode_rows()[self._num_before :]
        turns, tokens = sum(row["num_turns"] for row in rows), sum(row["num_sampled_tokens"] for row in rows)
        rewarded = sum(row["reward"] is not None for row in rows)
        return (
            f"recorded {len(rows):,} sessions, {turns:,} turns, {tokens:,} sampled tokens, {rewarded:,} sessions with "
            f"rewards in {self.store.folder}"
        )


@asynccontextmanager
async def open_recording(
    folder: Path | None, config: Config, recorder: Recorder, access: Access, *, idle_s: float = IDLE_S
) -> AsyncIterator[Recording]:
    """A recording into `folder`, which goes on if it is a run; every session is in it when the block has ended.

    folder: None: the first free one of `runs/gateway`, `runs/gateway-2` and so on.
    """
    if folder is None:
        folder = Path(DEFAULT_ROOT) / free_name(Path(DEFAULT_ROOT), DEFAULT_NAME)
    is_there = (folder / "run.db").exists()
    exporter = open_exporter(config.trace, folder.name)
    store = RunStore.open(folder) if is_there else RunStore.create(folder.parent, folder.name, config.to_yaml())
    with store, exporter:
        store.export_to(exporter)
        recording = Recording(store, recorder, access, idle_s=idle_s)
        try:
            yield recording
        finally:
            await recording.episodes.aclose("the gateway ended")


def show_admin_key(console: Console, recording: Recording, access: Access) -> None:
    """Says the admin key, once, if it was made here."""
    if access.admin_key is None:
        console.print(f"admin key [bold]{recording.admin_key}[/], shown this once", highlight=False, soft_wrap=True)
