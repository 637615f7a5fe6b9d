"""The check of signals tells `ludus train` as a shell and a supervisor do; the whole of it is the command's."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ludus.checks.verify.signals import CASES, PHASES, Case, verify_signals


@pytest.mark.timeout(300)
def test_a_run_that_is_told_twice_leaves_and_goes_on(tiny_model_folder: Path) -> None:
    """Ctrl-C twice while a step hangs: 130 at once, and the resumed run ends with the weights of one left alone."""
    result = verify_signals(model=str(tiny_model_folder), cases=[Case("step", signal.SIGINT, 2)])
    assert result.ok and result.wrong == () and result.weights_equal == 1, result.endings
    (left,) = result.endings
    assert left.exit_code == 130 and left.saved_step is not None


def test_every_phase_is_told_by_every_signal() -> None:
    """36 cases; the codes are those of docs/promises.md."""
    assert len({case.name for case in CASES}) == 36 and {case.phase for case in CASES} == {*PHASES}
    once = {case.signal: case.codes for case in CASES if (case.phase, case.times) == ("step", 1)}
    assert once == {signal.SIGINT: (0,), signal.SIGTERM: (143,), signal.SIGHUP: (129,)}
    assert Case("export", signal.SIGTERM, 1).codes == (0,)
    assert Case("step", signal.SIGHUP, 2).codes == (129,) and not Case("step", signal.SIGHUP, 2).is_at_once
    assert Case("step", signal.SIGTERM, 2).codes[0] == 130
