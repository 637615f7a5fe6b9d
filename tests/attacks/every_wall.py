"""The attacks on the sandbox behind the walls that are not the ones used here: `make attack`."""

from __future__ import annotations

import pytest

from tests.attacks.test_sandbox import (
    WALLS,
    outside,
    test_an_attempt_is_refused,
    test_no_total_is_passed,
    test_usual_programs_run,
)

__all__ = ["outside", "test_an_attempt_is_refused", "test_no_total_is_passed", "test_usual_programs_run"]


@pytest.fixture(params=list(WALLS)[1:])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)
