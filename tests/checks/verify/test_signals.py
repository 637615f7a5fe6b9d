"""The check of signals tells `ludus train` as a shell and a supervisor do; the whole of it is the command's."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ludus.checks.verify.signals import CASES, PHASES, Case, verify_signals


@pytest.mark.timeout(300)
def test_a_run_that_is_told_saves_and_goes_on(tiny_model_folder: Path) -> None:
    """SIGTERM while a checkpoint is written: it is whole, 143. Ctrl-C twice in a step: 130, and a step is lost."""
    cases = (Case("checkpoint", signal.SIGTERM, 1), Case("step", signal.SIGINT, 2))
    result = verify_signals(model=str(tiny_model_folder), cases=cases)
    assert result.ok and result.wrong == () and result.weights_equal == 2, result.endings
    saved, left = result.endings
    assert saved.exit_code == 143 and saved.saved_step == saved.trained_steps > 0
    assert left.exit_code == 130 and left.left_after_s < 20


def test_every_phase_is_told_by_every_signal() -> None:
    """36 cases; the codes are those of docs/promises.md."""
    assert len({case.name for case in CASES}) == 36 and {case.phase for case in CASES} == {*PHASES}
    once = {case.signal: case.codes for case in CASES if (case.phase, case.times) == ("step", 1)}
    assert once == {signal.SIGINT: (0,), signal.SIGTERM: (143,), signal.SIGHUP: (129,)}
    assert Case("export", signal.SIGTERM, 1).codes == (0,)
    assert Case("step", signal.SIGHUP, 2).codes == (129,) and not Case("step", signal.SIGHUP, 2).is_at_once
    assert Case("step", signal.SIGTERM, 2).codes[0] == 130
