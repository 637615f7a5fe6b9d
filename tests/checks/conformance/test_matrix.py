"""The matrix and the list of failures, as a person reads them."""

from __future__ import annotations

from rich.console import Console, RenderableType

from ludus.checks.conformance.faults.base import Fault
from ludus.checks.conformance.local_server import WHOLE
from ludus.checks.conformance.matrix import mutants_shown, shown
from ludus.checks.conformance.mutants import MutantReport, MutantResult
from ludus.checks.conformance.run import CaseResult, SuiteReport
from ludus.checks.conformance.suite import chosen


def rendered(renderable: RenderableType) -> str:
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def made_up() -> SuiteReport:
    one, two, three = chosen("chat/n/")[:3]
    (other,) = chosen("messages/count_tokens/count_only")
    return SuiteReport(
        (
            CaseResult(one, "passed"),
            CaseResult(two, "failed", "index", "0", "7"),
            CaseResult(three, "skipped", "not offered: needs the token record"),
            CaseResult(other, "skipped", "not offered: needs the token record"),
        ),
        1.25,
    )


def test_matrix_counts_what_was_played() -> None:
    """A cell says how many of the cases that ran passed; one where none ran says that it is not offered."""
    text = rendered(shown(made_up()))
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["chat", "messages"]
    assert lines[1] == ["n", "1", "of", "2"]
    assert lines[2] == ["count_tokens", "not", "offered"]
    assert "2 not offered: needs the token record" in text
    assert text.rstrip().endswith("1 passed, 1 failed, 2 skipped in 1.2 s")


def test_failure_says_what_was_expected_and_what_came() -> None:
    """Every failed case is listed with its law."""
    text = rendered(shown(made_up()))
    failed = made_up().of("failed")[0].case
    assert failed.name in text and failed.law in text
    assert "expected  0" in text and "got       7" in text


def test_mutants_are_a_table() -> None:
    """Each fault with the case that saw it, or as missed."""
    result = made_up().of("failed")[0]
    fault = Fault("no end", "says nothing", WHOLE, ("chat",))
    report = MutantReport(SuiteReport((), 0.0), (MutantResult(fault, result, 3), MutantResult(fault, None, 9)), 2.0)
    text = rendered(mutants_shown(report))
    assert result.case.name in text and "missed" in text
    assert text.rstrip().endswith("1 of 2 faults caught in 2.0 s")
