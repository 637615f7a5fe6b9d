"""The suite itself: the local server keeps every law, and each case has its cell and its name."""

from __future__ import annotations

from collections import Counter

import pytest

from ludus.checks.conformance.case import PROTOCOLS, TOPICS
from ludus.checks.conformance.matrix import failure
from ludus.checks.conformance.suite import all_cases, chosen
from ludus.errors import UserError
from tests.checks.conformance.conftest import PlayOwn


def test_ours_keeps_every_law(play_own: PlayOwn) -> None:
    """Every case passes on the local gateway, over a socket, none is skipped."""
    report = play_own(all_cases())
    assert report.ok, "\n".join(failure(result).plain for result in report.of("failed"))
    assert len(report.of("passed")) == len(all_cases()) >= 150


def test_every_case_has_a_name_and_a_cell() -> None:
    """Names are unique; the protocols and topics that the matrix shows all have cases; laws are one line."""
    cases = all_cases()
    assert [name for name, count in Counter(case.name for case in cases).items() if count > 1] == []
    assert {case.protocol for case in cases} == set(PROTOCOLS)
    assert {case.topic for case in cases} == set(TOPICS)
    assert all(case.law and "\n" not in case.law and not case.law.endswith(".") for case in cases)
    assert sum(case.ours is None for case in cases) >= 100


def test_cases_are_chosen_by_a_part_of_the_name_or_a_pattern() -> None:
    """`chat/n/` and `chat/n/*` are the same cases; a pattern that names none says what there is."""
    assert chosen("chat/n/") == chosen("chat/n/*") != ()
    assert {case.protocol for case in chosen("chat/n/")} == {"chat"}
    with pytest.raises(UserError, match="chat/forced-tools"):
        chosen("telepathy")
