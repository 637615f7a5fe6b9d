"""The model calls of one session, with what each is worth: rewards set as the agent goes on, returns made of them.

Knows: the record, rewards by turn, the edges between turns.  Knows not: HTTP, groups, training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ludus.algorithms.returns import turn_returns
from ludus.episodes.ids import turn_id_of
from ludus.episodes.session import Session
from ludus.errors import AgentError, UserError
from ludus.gateway.desk import named_rewards
from ludus.runs.interactions import Row, Style, interactions
from ludus.types import Episode, Outcome, Turn


@dataclass(frozen=True, slots=True)
class Interaction:
    """One model call, as it was recorded."""

    turn: Turn
    prompt_ids: tuple[int, ...]
    """What the engine was given; `turn.sampled` is what it gave back."""
    reward: float | None
    """None: it was given none."""


class SessionRewards:
    """The rewards of one session, by the completion ids that any protocol shows."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.rewards: dict[str, float] = {}
        """By turn id."""
        self.is_discounted = False
        """The rewards are returns."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session!r}, rewards={len(self.rewards)})"

    def set_reward(self, completion_id: str, reward: float) -> None:
        """Rewards one turn, by the id that any protocol shows. Raises AgentError if it or the number cannot be."""
        self._set({completion_id: reward})

    def set_last_reward(self, reward: float) -> None:
        """Rewards the last turn that was answered."""
        self._set({None: reward})

    def apply_reward_discount(self, turn_discount: float = 1.0) -> dict[str, float]:
        """The rewards, each turn's now its return: its own reward and the discounted mean of those that follow it.

        Turns that no reward reaches have none. Raises UserError when it is done twice: returns are no rewards.
        """
        if self.is_discounted:
            raise UserError("the rewards of this session were discounted already; set new ones in a new session")
        if not (math.isfinite(turn_discount) and 0.0 <= turn_discount <= 1.0):
            raise UserError(f"turn_discount={turn_discount} must be from 0 to 1")
        follows = {turn.id: turn.follows for turn in self.session.snapshot().turns}
        returns = turn_returns(follows, self.rewards, turn_discount=turn_discount)
        self.rewards = {turn: value for turn, value in returns.items() if value is not None}
        self.is_discounted = True
        return dict(self.rewards)

    def _set(self, rewards: Mapping[str | None, float]) -> None:
        if self.is_discounted:
            raise UserError("the rewards of this session were discounted already; set them before")
        self.rewards.update(named_rewards(self.session.snapshot(), rewards))

    # ---- the record

    def get_interaction(self, completion_id: str) -> Interaction:
        """One model call by the id that any protocol shows. Raises AgentError if there is none."""
        record, wanted = self.session.snapshot(), turn_id_of(completion_id)
        for turn in record.turns:
            if turn.id == wanted:
                path = record.path_ids(turn.node)
                return Interaction(turn, path[: len(path) - len(turn.sampled.token_ids)], self.rewards.get(turn.id))
        raise AgentError(
            f"no turn of this session has the completion id {completion_id!r}; it has {len(record.turns)} turns",
            status=404,
            code="completion_not_found",
        )

    def export_interactions(self, style: Style = "individual") -> list[Row]:
        """Token ids, masks, logprobs and rewards in plain JSON; the rows that `ludus export` writes."""
        return interactions(self.episode(), style)

    def episode(self) -> Episode:
        """The session so far as an episode."""
        record = self.session.snapshot()
        return Episode(
            id=self.session.id,
            task_id=self.session.group_id or self.session.id,
            group_id=self.session.group_id or self.session.id,
            session=record,
            rewards=dict(self.rewards),
            outcome=Outcome("ok"),
            reward=math.fsum(self.rewards.values()) if self.rewards else None,
            started_at=record.turns[0].started_at if record.turns else 0.0,
            finished_at=record.turns[-1].finished_at if record.turns else 0.0,
        )
