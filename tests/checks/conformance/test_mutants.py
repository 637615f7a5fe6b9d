"""The suite can fail: faults are caught, each where it belongs, and what is not caught is reported."""

from __future__ import annotations

import asyncio

from ludus.checks.conformance.faults.base import Fault
from ludus.checks.conformance.local_server import WHOLE
from ludus.checks.conformance.mutants import FAULTS, MutantReport, run_mutants
from ludus.checks.conformance.suite import chosen


def hunt_some(pattern: str, *faults: Fault) -> MutantReport:
    return asyncio.run(run_mutants(chosen(pattern), faults))


def named(name: str) -> Fault:
    return next(fault for fault in FAULTS if fault.name == name)


def test_faults_have_names_and_near_cases() -> None:
    """At least twenty, each with a name of its own and with cases that exist."""
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 20
    names = [case.name for case in chosen(None)]
    assert [fault.name for fault in FAULTS if not any(name.startswith(fault.near) for name in names)] == []


def test_a_fault_is_caught_by_the_case_about_it() -> None:
    """Faults of a stream, of a template and of the keys are each seen by a case of that topic."""
    report = hunt_some("chat/streaming/done", named("no [DONE]"))
    assert report.ok and report.to_json()["caught"] == 1
    assert [one.by.case.topic for one in report.results if one.by] == ["streaming"]
    assert hunt_some("chat/streaming/role_first", named("no role")).num_caught == 1
    assert hunt_some("chat/text/second_prompt", named("line end lost")).num_caught == 1
    assert hunt_some("chat/keys/wrong_key", named("key not checked")).num_caught == 1


def test_a_fault_that_nothing_sees_is_missed() -> None:
    """A server without a fault is not called faulty."""
    report = hunt_some("chat/text/parts", Fault("none", "is right", WHOLE, ("chat/text",)))
    assert (report.num_caught, report.ok) == (0, False)
    assert report.to_json()["missed"] == ["none"]
