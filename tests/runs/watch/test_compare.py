from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ludus.runs.watch.compare import paired, student_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 30, 101, 1000])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_quantiles_are_those_of_scipy(freedom: int, confidence: float) -> None:
    assert student_quantile(freedom, confidence) == pytest.approx(stats.t.ppf(0.5 + confidence / 2, freedom), rel=1e-9)


numbers = st.integers(-100, 100).map(float)


@given(pairs=st.lists(st.tuples(numbers, numbers), min_size=2, max_size=40))
def test_the_interval_is_that_of_a_paired_t_test(pairs: list[tuple[float, float]]) -> None:
    """Over the tasks that both have; those of one alone change nothing, and the other way round it is mirrored."""
    a = {f"task-{number}": value for number, (value, _) in enumerate(pairs)}
    b = {f"task-{number}": value for number, (_, value) in enumerate(pairs)}
    found = paired({**a, "only-a": 5.0}, {**b, "only-b": -5.0})
    assert found is not None and found["rows"] == len(pairs)
    if len({b[task] - a[task] for task in a}) > 1:
        expected = stats.ttest_rel([b[task] for task in a], [a[task] for task in a]).confidence_interval(0.95)
        assert found["interval"] == pytest.approx([expected.low, expected.high], rel=1e-6, abs=1e-6)
    assert found["difference"] == pytest.approx(found["mean_b"] - found["mean_a"], abs=1e-9)
    mirrored = paired(b, a)
    assert mirrored is not None
    assert mirrored["interval"] == pytest.approx([-each for each in reversed(found["interval"])], abs=1e-9)


def test_one_row_is_no_comparison() -> None:
    assert paired({"x": 1.0, "y": 2.0}, {"x": 1.0, "z": 2.0}) is None
