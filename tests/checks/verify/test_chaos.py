"""The chaos check with five faults, one of each kind but one: real processes, killed and stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ludus.checks.verify.chaos import verify_chaos


@pytest.mark.skipif(sys.platform != "linux", reason="what happens to processes are Linux's calls")
@pytest.mark.timeout(900)
def test_a_disturbed_run_ends_as_if_nothing_had_been(tiny_model_folder: Path) -> None:
    """Whatever happens to whichever process: nothing is lost, nothing is twice, and the weights are the same."""
    result = verify_chaos(kills=5, model=str(tiny_model_folder), seed=1)
    assert (result.tokens_lost, result.twice, result.unbalanced, result.weights_equal) == (0, 0, 0, True), result
    assert result.kills == 5 and len(result.kinds) >= 4 and result.ok
