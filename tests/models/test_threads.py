"""Threads: as many as there are free cores, unless somebody says how many."""

import logging
from collections.abc import Iterator
from math import inf

import pytest
import torch

from ludus.machine import Machine
from ludus.models.threads import choose_threads, compute_as, computing_within


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The choice is made anew in each test, and the process computes as before after it."""
    before = torch.get_num_threads()
    choose_threads.cache_clear()
    yield
    choose_threads.cache_clear()
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("machine", "num", "said"),
    [
        (Machine(4, inf, 1.1), 3, "computing with 3 of 4 threads: others keep 1.1 of 4 cores busy"),
        (Machine(4, 2.0), 2, "computing with 2 of 4 threads: its control group allows 2 of 4 cores"),
        (Machine(4, inf, 0.2), 4, ""),
        (Machine(8, whole_cores=3), 3, ""),
        (Machine(8, inf, 6.0, whole_cores=4), 2, "computing with 2 of 4 threads: others keep 6.0 of 8 cores busy"),
    ],
)
def test_it_computes_with_the_cores_that_are_free(
    machine: Machine, num: int, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The number is set, and a warning says why it is smaller than it could be."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(Machine, "look", lambda: machine)
    torch.set_num_threads(4)
    with caplog.at_level(logging.WARNING):
        assert choose_threads() == torch.get_num_threads() == num
    assert bool(said) == bool(caplog.records) and said in caplog.text


@pytest.mark.parametrize(("machine", "is_told"), [(Machine(2, inf, 2.0), False), (Machine(64, 1.5), True)])
def test_who_says_how_many_gets_them(
    machine: Machine, is_told: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """OMP_NUM_THREADS is left alone, whoever computes beside it; a warning says if there are no cores for them."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(Machine, "look", lambda **_: machine)
    torch.set_num_threads(2)
    with caplog.at_level(logging.WARNING):
        assert choose_threads() == torch.get_num_threads() == 2
    assert is_told == ("has 2 threads compute on 1 of this machine" in caplog.text) == bool(caplog.records)


@pytest.mark.parametrize(
    ("told", "cores", "num", "said"),
    [
        (None, 4, 3, "computing with 3 threads instead of 2, as before"),
        (None, 2, 2, "2 threads, not with 3 as before: this machine has 2 cores for them; last bits may differ"),
        ("2", 4, 2, "2 threads, not with 3 as before: OMP_NUM_THREADS=2; last bits may differ"),
    ],
)
def test_what_was_computed_before_is_computed_so_again(
    told: str | None,
    cores: int,
    num: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With as many threads as then, or a warning that says why not; the same number is not spoken of."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if told is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", told)
    monkeypatch.setattr(Machine, "look", lambda **_: Machine(cores))
    torch.set_num_threads(2)
    with caplog.at_level(logging.WARNING):
        compute_as(2)
        assert not caplog.records
        compute_as(3)
    assert torch.get_num_threads() == num and said in caplog.text


def test_beside_others_of_the_run_it_computes_with_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as they are there; never with more than before, and OMP_NUM_THREADS decides."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(3)
    for most, num in ((2, 2), (8, 3), (None, 3)):
        with computing_within(most):
            assert torch.get_num_threads() == num
        assert torch.get_num_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with computing_within(1):
        assert torch.get_num_threads() == 3
