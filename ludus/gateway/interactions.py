"""The model calls of one session, with what each is worth: rewards set as the agent goes on, returns made of them.

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
    """One model call, as it was recorded."""

    turn: Turn
    prompt_ids: tuple[int, ...]
    """What the engine was given; `turn.sampled` is what it gave back."""
    reward: float | None
    """None: it was given none."""


class SessionRewards:
    """The rewards of one session, by the completion ids that any protocol shows."""

    def __init__(self, session: Session, sheet: RewardSheet | None = None) -> None:
        """sheet: where the rewards are. None: in one of its own."""
        self.session = session
        self.sheet = RewardSheet() if sheet is None else sheet

    @property
    def is_discounted(self) -> bool:
        """The rewards are returns."""
        return self.sheet.are_returns

    def reward(self, value: float) -> None:
        """Rewards every leaf of the conversation as it is now, which is what a number that an agent returns does."""
        self._add(value)

    def set_reward(self, completion_id: str, reward: float) -> None:
        """Rewards one turn, by the id that any protocol shows. Raises AgentError if it or the number cannot be."""
        self._add({completion_id: reward})

    def set_last_reward(self, reward: float) -> None:
        """Rewards the last turn that was answered."""
        answered = [turn.id for turn in self.session.snapshot().turns if turn.sampled.stop_reason != "abort"]
        self._add({answered[-1]: reward} if answered else reward)

    def apply_reward_discount(self, turn_discount: float = 1.0) -> dict[str, float]:
        """The rewards, each turn's now its return: its own reward and the discounted mean of those that follow it.

        Turns that no reward reaches have none. Raises UserError when it is done twice: returns are no rewards.
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
        """One model call by the id that any protocol shows. Raises AgentError if there is none."""
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
        """Token ids, masks, logprobs and rewards in plain JSON; the rows that `ludus export` writes."""
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
