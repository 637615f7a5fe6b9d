"""The groups that each step of a run was given: how they are recorded, and how a replay reads them back.

Knows: groups, the run store.  Knows not: who played them, what a step does with them.
Invariant: `RecordedGroups` gives a step groups equal to those it was given when it was recorded.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from ludus.errors import UserError
from ludus.rollout.groups import Cursor, Discarded, TakenGroups
from ludus.runs.codec import decode_episode, encode_episode
from ludus.runs.store import RunStore
from ludus.types import Group


def batch_record(taken: TakenGroups) -> dict[str, Any]:
    """The groups as JSON: episodes by their ids, demonstrations in full, as they are in no run store."""
    return {
        "groups": [_group_record(group) for group in taken.groups],
        "replayed": [_group_record(group) for group in taken.replayed],
        "discarded": [[item.episode.id, item.mask] for item in taken.discarded],
        "skipped": dict(taken.skipped),
    }


class RecordedGroups:
    """A `GroupSource` that gives the recorded groups of a run, step by step. Most of its methods have nothing to do:
    nothing is played."""

    def __init__(self, store: RunStore, *, version: int) -> None:
        """store: of the recorded run.  version: of the weights that the first batch trains."""
        self._store = store
        self._version = version

    def __repr__(self) -> str:
        return f"RecordedGroups({self._store!r}, version={self._version})"

    async def __aenter__(self) -> RecordedGroups:
        return self

    async def __aexit__(self, *error: object) -> None: ...

    @property
    def cursor(self) -> Cursor:
        return Cursor()

    async def take(self, num_groups: int) -> TakenGroups:
        """All groups that the next step was given when it was recorded, whatever `num_groups` is.

        Raises UserError if they are not in the record.
        """
        step = self._version + 1
        record = self._store.batch(step)
        if record is None:
            raise UserError(
                f"the run {self._store.name!r} does not say which episodes step {step} was given: it was not trained, "
                "or run.db is damaged there"
            )
        return TakenGroups(
            groups=tuple(map(self._group, record["groups"])),
            discarded=tuple(Discarded(self._store.episode(id_), mask) for id_, mask in record["discarded"]),
            skipped=record["skipped"],
            replayed=tuple(map(self._group, record["replayed"])),
        )

    def reserve(self, num_groups: int) -> None:
        """Groups from the replay buffer are in the record too."""

    def give_back(self, taken: TakenGroups) -> None: ...

    def drain_nowait(self) -> TakenGroups:
        return TakenGroups((), ())

    def advance(self, version: int) -> None:
        self._version = version

    def pause_admission(self) -> None: ...

    def resume_admission(self) -> None: ...

    def _group(self, record: Mapping[str, Any]) -> Group:
        return Group(
            record["id"],
            record["task_id"],
            tuple(map(self._store.episode, record["episodes"])),
            record["source"],
            tuple(decode_episode(base64.b64decode(each)) for each in record["demonstrations"]),
        )


def _group_record(group: Group) -> dict[str, Any]:
    return {
        "id": group.id,
        "task_id": group.task_id,
        "source": group.source,
        "episodes": [episode.id for episode in group.episodes],
        "demonstrations": [base64.b64encode(encode_episode(each)).decode() for each in group.demonstrations],
    }
