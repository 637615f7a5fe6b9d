"""The parity check plays real turns, and judges by fp32 alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ludus.verify.parity import verify_parity


def test_sampler_and_trainer_agree_in_fp32(tiny_model_folder: Path) -> None:
    """Logprobs of several conversations at once, with shared prefixes and later turns, differ by rounding alone."""
    done: list[int] = []
    result = verify_parity(dtype="fp32", tokens=300, model=str(tiny_model_folder), seed=5, on_token=done.append)
    assert result.ok and result.max_abs_diff <= 1e-4
    assert result.tokens == done[-1] >= 300
    assert result.turns > 8 and result.forks > 0
    assert result.cached_tokens > 0 and result.shared > 0.2
    assert not replace(result, max_abs_diff=2e-4).ok


def test_bf16_is_reported_not_judged(tiny_model_folder: Path) -> None:
    """In bf16 the difference is there to be read, and the check passes."""
    result = verify_parity(dtype="bf16", tokens=50, model=str(tiny_model_folder), seed=5)
    assert result.ok and result.tolerance is None and result.max_abs_diff > 0.0
