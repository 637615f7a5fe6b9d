"""How much each trained token counts in the loss of one optimizer batch.

Knows: counts of trained tokens by episode.  Knows not: rows; so packing changes no weight.
A normaliser returns for each episode the weight of its trained tokens; 0.0 if it has none, and such an episode counts
in no mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from ludus.algorithms.base import Rule
from ludus.settings import Choice


class TokenSettings(Choice):
    """The mean over all trained tokens of a step."""

    kind: Literal["token"] = "token"


class EpisodeSettings(Choice):
    """The mean over episodes of the mean over their trained tokens."""

    kind: Literal["episode"] = "episode"


class ConstantSettings(Choice):
    """The mean over episodes of the sum over their trained tokens, divided by one constant length."""

    kind: Literal["constant"] = "constant"
    tokens: int | None = Field(default=None, ge=1)
    """The length to divide by. None: the maximum length of an answer, `gconfig.max_new_tokens`."""


def token_weights(num_trained: Sequence[int]) -> tuple[float, ...]:
    """1 / all trained tokens. Source: DAPO (arXiv 2503.14476) eq. 8."""
    total = sum(num_trained)
    return tuple(1.0 / total if count else 0.0 for count in num_trained)


def episode_weights(num_trained: Sequence[int]) -> tuple[float, ...]:
    """1 / (episodes * own trained tokens). Source: DeepSeekMath (arXiv 2402.03300) eq. 3."""
    num_episodes = sum(1 for count in num_trained if count)
    return tuple(1.0 / (num_episodes * count) if count else 0.0 for count in num_trained)


def constant_weights(num_trained: Sequence[int], *, tokens: int | None) -> tuple[float, ...]:
    """1 / (episodes * tokens). Source: Dr. GRPO (arXiv 2503.20783) sec. 3.2."""
    assert tokens is not None, "`AlgorithmSettings.of_length` gave it"
    num_episodes = sum(1 for count in num_trained if count)
    return tuple(1.0 / (num_episodes * tokens) if count else 0.0 for count in num_trained)


TOKEN = Rule(TokenSettings, token_weights, "DAPO (arXiv 2503.14476) eq. 8", formula="1 / tokens")
EPISODE = Rule(
    EpisodeSettings,
    episode_weights,
    "DeepSeekMath (arXiv 2402.03300) eq. 3",
    formula="1 / (episodes * tokens of its episode)",
)
CONSTANT = Rule(
    ConstantSettings, constant_weights, "Dr. GRPO (arXiv 2503.20783) sec. 3.2", formula="1 / (episodes * {tokens})"
)
