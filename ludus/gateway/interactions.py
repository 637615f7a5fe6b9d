"""The model calls of one session and their rewards: set as the agent runs, and discounted to returns on request.

Knows: the record, rewards by turn, the edges between turns.  Knows not: HTTP, groups, training.
"""

from __future__ import annotations

from dataclasses import dataclass

from ludus.episodes.episode import finish
from ludus.episodes.ids import turn_id_of
from ludus.episodes.outcome import Reported
from ludus.episodes.reward import RewardSheet
from ludus.episodes.session import Session
from ludus.errors import AgentError, UserError
from ludus.runs.interactions import Row, Style, interactions
from ludus.types import Episode, Turn


@dataclass(frozen=True, slots=True)
class Interaction:
    """One recorded model call."""

    turn: Turn
    prompt_ids: tuple[int, ...]
    """What the engine was given; `turn.sampled` is what it gave back."""
    reward: float | None
    """None: the call was not rewarded."""


class SessionRewards:
    """The rewards of one session, by the completion ids that any protocol shows."""

    def __init__(self, session: Session, sheet: RewardSheet | None = None) -> None:
        """sheet: where the rewards are stored. None: a new one."""
        self.session = session
        self.sheet = RewardSheet() if sheet is None else sheet

    @property
    def is_discounted(self) -> bool:
        """Whether `apply_reward_discount` has turned the rewards into returns."""
        return self.sheet.are_returns

    def reward(self, value: float) -> None:
        """Reward every leaf of the conversation as it is now; a number returned by an agent does the same."""
        self._add(value)

    def set_reward(self, completion_id: str, reward: float) -> None:
        """Reward one turn by its completion id. Raises AgentError for an unknown id or a number that is not finite."""
        self._add({completion_id: reward})

    def set_last_reward(self, reward: float) -> None:
        """Reward the turn that was answered last."""
        answered = [turn.id for turn in self.session.snapshot().turns if turn.sampled.stop_reason != "abort"]
        self._add({answered[-1]: reward} if answered else reward)

    def apply_reward_discount(self, turn_discount: float = 1.0) -> dict[str, float]:
        """Replaces each turn's reward by its return: its own reward plus the discounted mean return of its successors.

        Turns that no reward reaches stay without one. Raises UserError when called twice: returns cannot be discounted.
        """
        self.sheet.discount(self.session.snapshot().turns, turn_discount)
        return self.sheet.by_turn

    def _add(self, value: object) -> None:
        if self.sheet.are_returns:
            raise UserError("the rewards of this session were discounted already; set them before")
        self._give(value)

    def _give(self, value: object) -> None:
        self.sheet.add(value, self.session.snapshot().turns)

    # ---- the record

    def get_interaction(self, completion_id: str) -> Interaction:
        """One model call by its completion id. Raises AgentError if there is none."""
        record, wanted = self.session.snapshot(), turn_id_of(completion_id)
        for turn in record.turns:
            if turn.id == wanted:
                path, reward = record.path_ids(turn.node), self.sheet.by_turn.get(turn.id)
                return Interaction(turn, path[: len(path) - len(turn.sampled.token_ids)], reward)
        raise AgentError(
            f"no turn of this session has the completion id {completion_id!r}; it has {len(record.turns)} turns",
            status=404,
            code="completion_not_found",
        )

    def export_interactions(self, style: Style = "individual") -> list[Row]:
        """Token ids, masks, logprobs and rewards as plain JSON: the rows that `ludus export` writes."""
        return interactions(self.episode(), style)

    def episode(self) -> Episode:
        """The session so far as an episode."""
        record = self.session.snapshot()
        return finish(
            self.session.spec,
            record,
            Reported("ok"),
            sheet=self.sheet,
            started_at=record.turns[0].started_at if record.turns else 0.0,
        )
