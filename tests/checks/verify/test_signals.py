"""The check of signals tells `ludus train` as a shell and a supervisor do; the whole of it is the command's."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from ludus.checks.verify import signals
from ludus.checks.verify.signals import CASES, PHASES, Case, Ending, verify_signals
from ludus.errors import BackendError


@pytest.mark.timeout(300)
def test_a_run_that_is_told_twice_leaves_and_goes_on(tiny_model_folder: Path) -> None:
    """Ctrl-C twice while a step hangs: 130 at once, and the resumed run ends with the weights of one left alone."""
    result = verify_signals(model=str(tiny_model_folder), cases=[Case("step", signal.SIGINT, 2)])
    assert result.ok and result.wrong == () and result.weights_equal == 1, result.endings
    (left,) = result.endings
    assert left.exit_code == 130 and left.saved_step is not None


def test_a_case_that_cannot_be_judged_costs_the_others_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is among the wrong ones with its reason; the others have been judged."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    left = Ending("step", "SIGINT", 1, 0, 0.5, 2, 2, weights_equal=True, is_right=True)

    def ending(_folder: Path, case: Case, *_: object) -> Ending:
        if case.phase == "export":
            raise BackendError("no run could be caught")
        return left

    monkeypatch.setattr(signals, "_ending", ending)
    monkeypatch.setattr(signals, "Training", lambda *_: SimpleNamespace(finish=lambda: None))
    monkeypatch.setattr(signals, "digest", lambda _: "")
    cases = [Case("export", signal.SIGTERM, 1), Case("step", signal.SIGINT, 1)]
    result = verify_signals(model=str(tmp_path), cases=cases)
    assert not result.ok and result.wrong == ("export-SIGTERM-1",) and result.runs == result.weights_equal == 1
    assert [*result.details][-1] == {"case": "export-SIGTERM-1", "failure": "no run could be caught"}
    assert result.to_json()["failures"] == {"export-SIGTERM-1": "no run could be caught"}


def test_a_case_leaves_nothing_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run holds ten times its model; those of 36 cases filled a disk of 50 GB, and the later ones failed."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")

    def ending(folder: Path, case: Case, *_: object) -> Ending:
        runs = folder / "runs"
        assert not runs.is_dir() or not [*runs.iterdir()]
        (runs / case.name / "checkpoints").mkdir(parents=True)
        if case.phase == "export":
            raise BackendError("no run could be caught")
        return Ending("step", "SIGINT", 1, 0, 0.5, 2, 2, weights_equal=True, is_right=True)

    monkeypatch.setattr(signals, "_ending", ending)
    monkeypatch.setattr(signals, "Training", lambda *_: SimpleNamespace(finish=lambda: None))
    monkeypatch.setattr(signals, "digest", lambda _: "")
    cases = [Case("export", signal.SIGTERM, 1), Case("step", signal.SIGINT, 1), Case("step", signal.SIGINT, 2)]
    assert verify_signals(model=str(tmp_path), cases=cases).runs == 2


def test_every_phase_is_told_by_every_signal() -> None:
    """36 cases; the codes are those of docs/promises.md."""
    assert len({case.name for case in CASES}) == 36 and {case.phase for case in CASES} == {*PHASES}
    once = {case.signal: case.codes for case in CASES if (case.phase, case.times) == ("step", 1)}
    assert once == {signal.SIGINT: {0}, signal.SIGTERM: {143}, signal.SIGHUP: {129}}
    assert Case("export", signal.SIGTERM, 1).codes == {0}
    assert Case("step", signal.SIGHUP, 2).codes == {129} and not Case("step", signal.SIGHUP, 2).is_at_once
    assert Case("step", signal.SIGTERM, 2).codes == {130, 143}
    assert Case("export", signal.SIGHUP, 2).codes == {0, 129}
