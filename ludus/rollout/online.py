"""Online mode: groups to train on are made of sessions that clients play over HTTP; the run has no rows and no agent.

Knows: the gateway, ended sessions.  Knows not: advantages, training.
Invariants: a session is in the run store before it is trained on; every session that ended leaves inside an accepted
group or discarded with the reason that masks its tokens; while nothing arrives, nothing runs.

    POST /sessions ─▶ open ─▶ ended ─▶ run store ─▶ its group, once that is complete ─▶ take

A group is complete when all of its sessions have ended. Trainable sessions without a group are grouped in the order in
which they end, so that each is compared with others of the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ludus.episodes.archive import RunArchive
from ludus.episodes.episodes import Episodes
from ludus.episodes.export import NO_BOUNDS, TokenBounds
from ludus.episodes.limits import Limits
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.gateway.app import GatewayOptions
from ludus.gateway.server import GatewayServer
from ludus.http.keys import new_key
from ludus.http.tls import Tls
from ludus.rollout.groups import Cursor, GroupFilter, TakenGroups, WaitingGroups, discard_reason
from ludus.rollout.settings import GenerationSettings, OnlineSettings, RolloutSettings
from ludus.runs.store import RunStore
from ludus.types import Episode, Group

OnGateway = Callable[[str, str], None]
"""(address of the gateway, admin key): called when the gateway listens."""


class OnlineRollouts:
    """A `GroupSource` of sessions that arrive over HTTP. Created and used on one event loop."""

    def __init__(
        self,
        recorder: Recorder,
        store: RunStore,
        settings: RolloutSettings,
        generation: GenerationSettings,
        *,
        version: int = 0,
        group_filter: GroupFilter | None = None,
        bounds: TokenBounds = NO_BOUNDS,
        admin_key: str | None = None,
        on_gateway: OnGateway | None = None,
    ) -> None:
        """version: steps trained already.  bounds: of the tokens that are trained, apart from their age.

        admin_key: None: one is made.  on_gateway: called on entering, if given.
        """
        self._settings = settings
        self._generation = generation
        self._on_gateway = on_gateway
        self._loop = asyncio.get_running_loop()
        self._growing: dict[str | None, _Growing] = {}
        """By group id. Under None: the trainable sessions that have no group."""
        self._num_groups_alone = 0
        self._num_complete = 0
        self._num_reserved = 0
        self._waiting = WaitingGroups(
            settings, n_samples=generation.n_samples, version=version, group_filter=group_filter, bounds=bounds
        )
        self._admin_key = admin_key or new_key()
        assert isinstance(settings.agent, OnlineSettings), "sessions are those of others"
        self._agent = settings.agent
        archive = RunArchive(store, step=lambda: self._waiting.version + 1, on_kept=self.arrived)
        self._episodes = Episodes(recorder, archive, idle_s=settings.episode_timeout_s, fit=self._fit)
        self._server = GatewayServer(
            self._episodes.keys,
            GatewayOptions(episodes=self._episodes, admin_key=self._admin_key),
            tls=Tls.of(self._agent.tls_cert, self._agent.tls_key),
        )

    def __repr__(self) -> str:
        waiting = sum(len(group.members) for group in self._growing.values())
        return f"OnlineRollouts({self._server!r}, waiting_groups={len(self._waiting)}, waiting_sessions={waiting})"

    async def __aenter__(self) -> OnlineRollouts:
        self._server.start(self._agent.host, self._agent.port)
        if self._on_gateway is not None:
            self._on_gateway(self._server.base_url, self._admin_key)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.stop()
        await self._episodes.aclose("the run ended first")
        await asyncio.sleep(0)  # sessions that ended last wait to be entered; who drains next must find them

    @property
    def version(self) -> int:
        """Version of the weights that sample now."""
        return self._waiting.version

    @property
    def cursor(self) -> Cursor:
        """The empty cursor: a resumed run cannot restart what clients play."""
        return Cursor()

    async def take(self, num_groups: int) -> TakenGroups:
        """As `GroupSource.take`. Raises what the user's group filter raised."""
        num_own = num_groups - self._num_reserved
        while not self._waiting.is_ready(num_own):
            await self._waiting.wait()
        return self._waiting.take_nowait(num_own)

    def reserve(self, num_groups: int) -> None:
        self._num_reserved = num_groups

    def give_back(self, taken: TakenGroups) -> None:
        self._waiting.give_back(taken)

    def drain_nowait(self) -> TakenGroups:
        for growing in self._growing.values():
            self._waiting.discard(growing.members, "unused")
        self._growing = {}
        return self._waiting.drain_nowait()

    def advance(self, version: int) -> None:
        self._waiting.version = version

    def pause_admission(self) -> None:
        """Does nothing: clients decide when sessions begin."""

    def resume_admission(self) -> None: ...

    def arrived(self, episode: Episode, spec: SessionSpec) -> None:
        """Called, on any thread, when a session has ended and is in the run store."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._enter, episode, spec.group_size)

    # ---- inside

    def _fit(self, spec: SessionSpec) -> SessionSpec:
        """`spec` with the run's limits and with the sampling values that training needs."""
        settings, limits = self._settings, spec.limits
        return replace(
            spec,
            limits=Limits(
                max_turns=_least(limits.max_turns, settings.max_turns),
                max_tokens=_least(limits.max_tokens, settings.max_tokens),
                deadline_at=limits.deadline_at,
            ),
            sampling=self._generation.sampling(),
            pinned=settings.pinned,
        )

    def _enter(self, episode: Episode, group_size: int | None) -> None:
        is_alone, mask = episode.group_id == episode.id, discard_reason(episode)
        if mask is not None:
            self._waiting.discard([episode], mask)
        if mask is None or not is_alone:
            key = None if is_alone else episode.group_id
            size = None if is_alone else group_size
            growing = self._growing.setdefault(key, _Growing(size or self._generation.n_samples))
            growing.num_ended += 1
            if mask is None:
                growing.members.append(episode)
            if growing.num_ended >= growing.size:
                del self._growing[key]
                self._complete(episode, growing.members, is_alone)
        self._waiting.notify()

    def _complete(self, last: Episode, members: list[Episode], is_alone: bool) -> None:
        group_id, task_id = last.group_id, last.task_id
        if is_alone:
            self._num_groups_alone += 1
            group_id = task_id = f"alone-v{self.version:06d}-{self._num_groups_alone:06d}"
        self._num_complete += 1
        self._waiting.enter(Group(group_id, task_id, tuple(members)), self._num_complete)


@dataclass(slots=True)
class _Growing:
    """A group that is not complete yet."""

    size: int
    members: list[Episode] = field(default_factory=list)
    """Its ended sessions that can be trained on."""
    num_ended: int = 0


def _least(*values: int | None) -> int | None:
    known = [value for value in values if value is not None]
    return min(known) if known else None
