"""Advantages for self-play: the baseline of each role in each game is a moving average of its returns.

Knows: returns of turns, the agents' tags, the memory of earlier batches.  Knows not: tensors.
Invariant: groups are taken in the order of their ids, so the result does not depend on which finished first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal

from pydantic import Field

from ludus.algorithms.base import GroupReturns, Memory, Returns, Rule
from ludus.settings import Choice
from ludus.types import Episode


class RaeSettings(Choice):
    """Each return minus the moving average of its role's returns."""

    kind: Literal["rae"] = "rae"
    decay: float = Field(default=0.95, ge=0, lt=1)
    """Weight of the old baseline when an episode is added."""
    game: str | None = None
    """The key of an episode's metadata that names its game. None: there is only one game."""


def rae_advantages(
    groups: Sequence[GroupReturns], memory: Memory, *, decay: float, game: str | None
) -> tuple[list[Returns], Memory]:
    """A(m,t) = G(m,t) - b, b the baseline of the turn's role after this episode; None where the return is None.

    A role is the tag of the agent that made the call. After each episode b becomes `decay` b + (1 - `decay`) R, R the
    mean of the role's returns in it; b begins with 0, and demonstrations do not change it. memory: the baselines before
    the first group, by `rae/GAME/ROLE`; those after the last group are returned.
    Source: role-conditioned advantage estimation, SPIRAL (arXiv 2506.24119) alg. 1.
    """
    baselines = dict(memory)
    advantages: list[Returns] = []
    for group in groups:
        used: dict[tuple[str, str], float] = {}
        given = {episode.id for episode in group.group.demonstrations}
        for episode in sorted(group.group.episodes, key=lambda episode: episode.id):
            for role, values in _by_role(group, episode, game).items():
                if episode.id not in given:
                    mean = math.fsum(values.values()) / len(values)
                    baselines[role] = decay * baselines.get(role, 0.0) + (1 - decay) * mean
                used.update({(episode.id, turn_id): baselines.get(role, 0.0) for turn_id in values})
        advantages.append(group.map(partial(_beside, used)))
    return advantages, baselines


def _by_role(group: GroupReturns, episode: Episode, game: str | None) -> dict[str, dict[str, float]]:
    """The returns of the episode's turns, by the name of their baseline in the memory."""
    played = "" if game is None else str(episode.metadata.get(game, ""))
    by_role: dict[str, dict[str, float]] = {}
    for turn in episode.session.turns:
        value = group.returns[episode.id][turn.id]
        if value is not None:
            by_role.setdefault(f"rae/{played}/{turn.agent}", {})[turn.id] = value
    return by_role


def _beside(baselines: dict[tuple[str, str], float], member: str, turn_id: str, value: float) -> float:
    return value - baselines[member, turn_id]


RAE = Rule(
    RaeSettings,
    rae_advantages,
    "RAE, SPIRAL (arXiv 2506.24119) alg. 1",
    formula="G - b of the role, b: {decay} b + (1 - {decay}) R after each episode",
    remembers=True,
)
