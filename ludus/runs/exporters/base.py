"""What takes finished episodes away from a run: the protocol of exporters to viewers.

Knows: encoded episodes.  Knows not: any viewer, who plays, the run's folder.
Invariant: `add` costs its caller next to nothing and never fails, whatever became of the viewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ludus.runs.codec import decode_episode, encode_episode
from ludus.types import Episode


@dataclass(frozen=True, slots=True)
class FinishedEpisode:
    """A finished episode as it is kept, and as it travels to another process."""

    record: bytes
    step: int | None = None
    """The training step that asked for it. None: no step did."""
    is_eval: bool = False

    @classmethod
    def of(cls, episode: Episode, step: int | None = None) -> Self:
        return cls(encode_episode(episode), step, episode.is_eval)

    @property
    def episode(self) -> Episode:
        return decode_episode(self.record)


class Exporter:
    """Base of exporters, which keeps nothing. Use as a context manager. `add` may be called from any thread."""

    @property
    def num_left(self) -> int:
        """Episodes that were added and have neither left nor been lost yet."""
        return 0

    def add(self, finished: FinishedEpisode) -> None:
        """An episode that has ended."""

    def flush(self) -> None:
        """Returns when all that was added has left or been lost."""

    def close(self) -> None:
        """Returns when all episodes have left, or will not."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class NoExporter(Exporter):
    """Nobody watches but the run's own folder."""
