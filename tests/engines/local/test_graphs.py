"""The bookkeeping of captured steps; what they compute is in interpreted.py, and on a card in tests/gpu."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ludus.engines.local.graphs import Replay, StepGraphs, choose_capture, padded_size

CPU = torch.device("cpu")


def test_the_cpu_has_no_graphs() -> None:
    """Steps on the processor run as they are."""
    assert choose_capture(CPU) is None


@given(num_rows=st.integers(1, 9000))
def test_sizes_hold_their_rows_and_are_few(num_rows: int) -> None:
    """A step is filled up to one of a few sizes, above 64 rows by at most a half; sizes are sizes themselves."""
    size = padded_size(num_rows)
    assert num_rows <= size < (num_rows * 3 / 2 if num_rows > 64 else num_rows * 2) and padded_size(size) == size
    assert len({padded_size(each) for each in range(1, 2049)}) == 17


class Failing:
    """A capture that fails so many times, as on a card whose memory is full."""

    def __init__(self, num_failures: int) -> None:
        self.num_left, self.num_calls = num_failures, 0

    def __call__(self, forward: Callable[[], torch.Tensor]) -> Replay:
        self.num_calls += 1
        if self.num_left:
            self.num_left -= 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        forward()
        return lambda: torch.tensor([2.0])


@pytest.mark.parametrize(("num_failures", "num_calls", "found"), [(0, 1, 2.0), (1, 2, 2.0), (2, 2, 1.0)])
def test_a_size_that_cannot_be_captured_is_tried_once_more(
    num_failures: int, num_calls: int, found: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After unused memory was given back; then it is computed as it is, and the log says so once, whatever follows."""
    freed: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(True))
    capture = Failing(num_failures)
    config = SimpleNamespace(num_heads=2, num_kv_heads=1)
    model: Any = SimpleNamespace(config=config, head_weight=torch.zeros(4, 2))
    cache: Any = None
    graphs = StepGraphs(model, cache, max_running=1, max_pages=1, capture=capture)
    replay = graphs._captured(lambda: torch.tensor([1.0]), 64)
    assert replay().tolist() == [found] and replay().tolist() == [found]
    assert (capture.num_calls, len(freed)) == (num_calls, min(1, num_failures))
    if num_failures == 2:
        capture.num_left = 2
        graphs._captured(lambda: torch.tensor([1.0]), 128)
        assert [record.message[:40] for record in caplog.records] == ["steps of 64 rows run without a CUDA grap"]
