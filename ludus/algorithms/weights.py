"""How much each trained token counts in the loss of one optimizer batch.

Knows: counts of trained tokens by episode.  Knows not: rows; a row is never a unit, so packing changes no weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ludus.errors import UserError

Normaliser = Literal["token", "episode", "constant"]


def episode_weights(
    num_trained: Sequence[int], *, normaliser: Normaliser, constant_tokens: int | None = None
) -> tuple[float, ...]:
    """Weight of each trained token of each episode; 0.0 for episodes without any, which count nowhere.

    num_trained: trained tokens of every episode of the optimizer batch.
    normaliser: `token` 1 / all trained tokens; `episode` 1 / (episodes * own trained tokens), a mean of means;
    `constant` 1 / (episodes * constant_tokens).
    Raises UserError if `constant` has no positive `constant_tokens`.
    Source: `token` DAPO (arXiv 2503.14476) eq. 8; `episode` DeepSeekMath (arXiv 2402.03300) eq. 3; `constant`
    Dr. GRPO (arXiv 2503.20783) sec. 3.2.
    """
    if normaliser == "constant" and (constant_tokens is None or constant_tokens < 1):
        raise UserError(f"normaliser 'constant' needs constant_tokens >= 1, got {constant_tokens}")
    num_episodes = sum(1 for count in num_trained if count)
    num_tokens = sum(num_trained)

    def weight(count: int) -> float:
        if count == 0:
            return 0.0
        if normaliser == "token":
            return 1.0 / num_tokens
        return 1.0 / (num_episodes * (count if normaliser == "episode" else constant_tokens or 1))

    return tuple(weight(count) for count in num_trained)
