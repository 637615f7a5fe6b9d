"""How sessions end, and what outcome that is."""

from __future__ import annotations

import pytest

from ludus.episodes.outcome import (
    Cancelled,
    Closed,
    Ending,
    Idle,
    Lost,
    Overdue,
    Raised,
    Reported,
    Returned,
    outcome_of,
)
from ludus.types import OutcomeKind

LIMIT = ("turn_limit",)


@pytest.mark.parametrize(
    ("ending", "refused", "is_rewarded", "kind", "reason"),
    [
        (Lost("gone"), LIMIT, False, "lost", "gone"),
        (Cancelled("over"), LIMIT, True, "cancelled", "over"),
        (Overdue(3.0, None), LIMIT, False, "timeout", "took longer than rollout.episode_timeout_s=3.0"),
        (Overdue(3.0, "sleep"), (), False, "timeout", "=3.0; sleep"),
        (Overdue(3.0, None, "line 2, in run"), (), False, "timeout", "line 2, in run\nthe agent took longer than"),
        (Raised("trace", "turn_limit x"), LIMIT, False, "truncated", "because it had met a limit (turn_limit)"),
        (Raised("trace", "turn_limit x"), (), False, "failed", "trace"),
        (Raised("trace", "deadline x"), LIMIT, False, "timeout", "time was used up"),
        (Raised("trace", ""), LIMIT, False, "failed", "trace"),
        (Reported("rejected", "no"), LIMIT, True, "rejected", "no"),
        (Reported("failed", "broke"), LIMIT, True, "failed", "broke"),
        (Reported("cancelled", "left"), LIMIT, True, "cancelled", "left"),
        (Reported("ok", "done"), (), False, "ok", "done"),
        (Reported("ok"), (*LIMIT, "token_limit"), False, "truncated", "met a limit (turn_limit, token_limit)"),
        (Reported("ok"), ("idempotency_mismatch",), False, "ok", ""),
        (Returned(1.0), (), True, "ok", ""),
        (Returned(1.0), LIMIT, True, "truncated", "met a limit (turn_limit) and ended"),
        (Idle(60.0), LIMIT, False, "timeout", "no request for 60 s"),
        (Idle(60.0), (), True, "truncated", "no request for 60 s"),
        (Closed("stopped"), (), True, "ok", "stopped"),
        (Closed("stopped"), LIMIT, True, "truncated", "met a limit"),
        (Closed("stopped"), LIMIT, False, "cancelled", "stopped"),
    ],
)
def test_every_ending_has_an_outcome(
    ending: Ending, refused: tuple[str, ...], is_rewarded: bool, kind: OutcomeKind, reason: str
) -> None:
    """The table of endings, row by row."""
    found = outcome_of(ending, has_turns=True, refused=refused, is_rewarded=is_rewarded)
    assert found.kind == kind and reason in found.reason


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (Reported("ok"), "failed"),
        (Idle(60.0), "failed"),
        (Reported("rejected"), "rejected"),
        (Reported("failed", "x"), "failed"),
        (Closed("stopped"), "cancelled"),
        (Lost("gone"), "lost"),
    ],
)
def test_a_session_without_a_turn(ending: Ending, kind: OutcomeKind) -> None:
    """Nobody can have done well without asking; what else was said of it stands."""
    found = outcome_of(ending, has_turns=False, refused=(), is_rewarded=False)
    assert found.kind == kind


def test_what_is_wrong_with_a_reward_fails_the_episode() -> None:
    """Its message is the reason, whatever limit was met; None rejects."""
    wrong = outcome_of(Returned("x"), has_turns=True, refused=LIMIT, is_rewarded=False, wrong="no number")
    assert (wrong.kind, wrong.reason) == ("failed", "no number")
    rejected = outcome_of(Returned(None), has_turns=False, refused=LIMIT, is_rewarded=False, is_rejected=True)
    assert (rejected.kind, rejected.reason) == ("rejected", "the agent returned None")
