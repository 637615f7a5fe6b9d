"""Makes the Episode of a session that has ended. Nothing else makes one.

Knows: the record, the rewards, how the session ended.  Knows not: who keeps it, who trains on it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from ludus.episodes.outcome import Ending, Returned, outcome_of
from ludus.episodes.reward import Given, RewardSheet, read
from ludus.episodes.spec import SessionSpec
from ludus.errors import AgentError
from ludus.types import Episode, Outcome, SessionRecord, Span

NO_METRICS: Mapping[str, float] = MappingProxyType({})


def finish(
    spec: SessionSpec,
    record: SessionRecord,
    ending: Ending,
    *,
    started_at: float,
    sheet: RewardSheet | None = None,
    refused: Collection[str] = (),
    metrics: Mapping[str, float] = NO_METRICS,
    spans: tuple[Span, ...] = (),
) -> Episode:
    """The episode of a session that ends now. If a reward is wrong, that is its outcome.

    sheet: rewards given before the end. None: there were none.  refused: codes of errors with which its requests were
    refused.  metrics: those that the agent returned take precedence.
    """
    given, wrong = Given(), None
    if isinstance(ending, Returned):
        try:
            given = read(ending.value, record.turns)
        except AgentError as error:
            wrong = error.message
    elif sheet is not None:
        given = Given(sheet.by_turn, sheet.whole, are_returns=sheet.are_returns)
    own_id = spec.id or record.id
    group_id = spec.group_id or own_id
    return Episode(
        id=own_id,
        task_id=spec.task_id or group_id,
        group_id=group_id,
        session=record,
        rewards=given.by_turn,
        outcome=outcome_of(
            ending,
            has_turns=bool(record.turns),
            refused=refused,
            is_rewarded=bool(given.by_turn),
            is_rejected=given.is_rejected,
            wrong=wrong,
        ),
        reward=given.whole,
        metrics={**metrics, **given.metrics},
        metadata={**spec.metadata, **given.metadata},
        started_at=started_at,
        finished_at=time.time(),
        is_eval=spec.is_eval,
        left_out=given.left_out,
        spans=spans,
        has_returns=given.are_returns,
    )


def rewarded_late(episode: Episode, value: object) -> Episode:
    """The episode with a reward that was given after its end, as for `RewardSheet.add`; a number replaces all rewards
    of its leaves."""
    late = RewardSheet()
    new = late.add(value, episode.session.turns)
    kept = {turn_id: reward for turn_id, reward in episode.rewards.items() if turn_id not in new}
    before = episode.reward if len(kept) == len(episode.rewards) else math.fsum(kept.values())
    outcome = episode.outcome
    if outcome.kind == "timeout":  # it had ended without a reward
        outcome = Outcome("truncated", outcome.reason)
    reward = math.fsum((before or 0.0, late.whole or 0.0))
    return replace(episode, rewards={**episode.rewards, **new}, reward=reward, outcome=outcome)
