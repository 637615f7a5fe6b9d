from __future__ import annotations

import pytest

from ludus.episodes.limits import Limits
from ludus.errors import AgentError, UserError


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (Limits(max_turns=3), "turn_limit"),
        (Limits(max_tokens=100), "token_limit"),
        (Limits(deadline_at=9.0), "deadline"),
    ],
)
def test_each_limit_has_its_code(limits: Limits, code: str) -> None:
    """What is used up is refused with status 400 and the code of its limit."""
    with pytest.raises(AgentError) as caught:
        limits.check(num_turns=3, num_asked=1, num_tokens=100, now=9.0)
    assert (caught.value.status, caught.value.code) == (400, code)


def test_within_the_limits_nothing_happens() -> None:
    """The last turn and the last token are allowed."""
    limits = Limits(max_turns=3, max_tokens=100, deadline_at=9.0)
    limits.check(num_turns=2, num_asked=1, num_tokens=99, now=8.9)
    assert limits.tokens_left(99) == 1
    assert Limits().tokens_left(10**9) is None


def test_negative_limits_are_refused() -> None:
    """A limit below zero is the caller's mistake."""
    with pytest.raises(UserError, match="max_tokens=-1 must be 0 or more"):
        Limits(max_tokens=-1)
