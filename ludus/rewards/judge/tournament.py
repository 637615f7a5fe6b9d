"""Judges groups that are too long for one prompt: heats, a final of the winners, and one scale for all scores.

Knows: sizes and scores.  Knows not: text, judges.
Invariants: the difference between two attempts of one heat is that given by their judge, unless the end of the scale
limits it; with a single heat, the scores are its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def split_into_heats(sizes: Sequence[int], room: int) -> list[list[int]]:
    """Splits the indices of `sizes` into heats, in order, each with a total of at most `room`.

    Every heat but the last has at least two members, whatever their size: a heat of one decides nothing.
    """
    heats: list[list[int]] = [[]]
    used = 0
    for index, size in enumerate(sizes):
        if len(heats[-1]) >= 2 and used + size > room:
            heats.append([])
            used = 0
        heats[-1].append(index)
        used += size
    return heats


def winner(scores: Mapping[int, float]) -> int:
    """The index with the best score; the first among equals."""
    return max(scores, key=lambda index: (scores[index], -index))


def on_one_scale(heats: Sequence[Mapping[int, float]], final: Mapping[int, float]) -> dict[int, float]:
    """All scores, by index: a winner has its score of the final; the others are as far below it as in their heat.

    final: the score of every heat's winner.
    """
    scores: dict[int, float] = {}
    for heat in heats:
        best = winner(heat)
        for index, score in heat.items():
            scores[index] = max(0.0, final[best] - (heat[best] - score))
    return scores
