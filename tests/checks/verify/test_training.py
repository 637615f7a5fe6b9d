"""What the checks' runs have in common: gates, and what a process is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.checks.verify.training import Gate


def test_a_gate_may_open_while_somebody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds while it is closed; who looks in the moment in which it opens goes on, and does not fail."""
    gate = Gate(tmp_path, "rollout")
    gate.close()
    assert gate.holds() and gate.reached.exists()
    gate.open()
    monkeypatch.setattr(Path, "exists", lambda _: True)  # as it was a moment ago
    assert not gate.holds()
