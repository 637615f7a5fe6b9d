"""The local server's record is checked against what the engine handed over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ludus.checks.conformance.case import case
from ludus.checks.conformance.expect import ExpectationError
from ludus.checks.conformance.local_server import check_record
from ludus.checks.conformance.probe import Probe
from tests.checks.conformance.conftest import PlayOwn


@case("sessions", "records")
async def record_is_checked(probe: Probe) -> None:
    """A record that lost a turn, a token or a call is not taken."""
    for _ in range(2):
        await probe.ask()
    record, calls = probe.local.session.snapshot(), probe.local.calls
    check_record(record, calls)
    with pytest.raises(ExpectationError, match="turns in the record"):
        check_record(replace(record, turns=record.turns[:1]), calls)
    with pytest.raises(ExpectationError, match="token ids recorded"):
        cut = replace(record.nodes[-1], token_ids=record.nodes[-1].token_ids[:-1])
        check_record(replace(record, nodes=(*record.nodes[:-1], cut)), calls)
    with pytest.raises(ExpectationError, match="turns in the record"):
        check_record(record, calls[:1])


def test_records_are_compared_with_the_engine(play_own: PlayOwn) -> None:
    """Every kind of difference is seen."""
    (result,) = play_own([record_is_checked]).results
    assert result.verdict == "passed", (result.what, result.expected, result.got)
