"""Groups that are too long for one prompt: heats, a final of their winners, and one scale for all.

Knows: sizes and scores.  Knows not: text, judges.
Invariants: two attempts of one heat are as far apart as the judge who saw both said, unless the end of the scale
stops them; with one heat, the scores are its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def split_into_heats(sizes: Sequence[int], room: int) -> list[list[int]]:
    """Indices of `sizes` in heats, in their order, each no larger in sum than `room`.

    Every heat but the last has at least two, whatever their size: a heat of one decides nothing.
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
    """Of several that are best, the first."""
    return max(scores, key=lambda index: (scores[index], -index))


def on_one_scale(heats: Sequence[Mapping[int, float]], final: Mapping[int, float]) -> dict[int, float]:
    """Scores of all, by index: a winner's is that of the final; the others are as far below as they were in their heat.

    final: a score of the winner of every heat.
    """
    scores: dict[int, float] = {}
    for heat in heats:
        best = winner(heat)
        for index, score in heat.items():
            scores[index] = max(0.0, final[best] - (heat[best] - score))
    return scores
