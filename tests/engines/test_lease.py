"""The compute lease: one holder at a time, first come first served."""

from __future__ import annotations

import threading

import pytest

from ludus.engines import lease as module
from ludus.engines.lease import ComputeLease


def test_only_one_holds_the_lease_and_turns_alternate() -> None:
    """Two threads that ask again and again never hold it together, and neither waits for two turns of the other."""
    lease = ComputeLease()
    turns: list[str] = []
    inside = 0
    both_ready = threading.Barrier(2)

    def work(name: str) -> None:
        nonlocal inside
        both_ready.wait()
        for _ in range(200):
            with lease.hold(name):
                inside += 1
                assert inside == 1
                turns.append(name)
                inside -= 1

    threads = [threading.Thread(target=work, args=(name,)) for name in ("engine", "trainer")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(turns) == ["engine"] * 200 + ["trainer"] * 200


def test_who_asks_first_is_served_first() -> None:
    """Threads that wait get the lease in the order in which they asked."""
    lease = ComputeLease()
    order: list[int] = []

    def work(number: int) -> None:
        with lease.hold("trainer"):
            order.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    with lease.hold("engine"):
        for number, thread in enumerate(threads):
            thread.start()
            while f"waiting={number + 1}" not in repr(lease):
                pass
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]


def test_an_error_inside_gives_the_lease_back() -> None:
    """A holder that raises does not keep the lease, and its seconds are counted."""
    lease = ComputeLease()
    try:
        with lease.hold("engine"):
            raise ValueError
    except ValueError:
        pass
    with lease.hold("trainer"):
        pass
    assert lease.stats().held_s.keys() == {"engine", "trainer"}
    assert all(seconds >= 0 for seconds in lease.stats().waited_s.values())


def test_who_waits_does_what_comes_meanwhile() -> None:
    """Once when it begins to wait, and after every nudge; the turn comes all the same."""
    lease, done, order = ComputeLease(), threading.Semaphore(0), []

    def meanwhile() -> None:
        order.append("meanwhile")
        done.release()

    def work() -> None:
        with lease.hold("engine", meanwhile):
            order.append("turn")

    thread = threading.Thread(target=work)
    with lease.hold("trainer"):
        thread.start()
        assert done.acquire(timeout=30)
        lease.nudge()
        assert done.acquire(timeout=30)
    thread.join()
    assert order[:2] == ["meanwhile", "meanwhile"] and order[-1] == "turn"


@pytest.mark.parametrize("place", ["release_workers", "meanwhile", "inside"])
def test_an_interrupt_leaks_nothing(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it comes, the lease is free afterwards, and nobody who waited is left behind."""
    lease, entered, told = ComputeLease(), threading.Event(), threading.Event()

    def interrupt() -> None:
        told.set()
        raise KeyboardInterrupt

    def other() -> None:
        with lease.hold("trainer"):
            entered.set()
            assert told.wait(timeout=30)

    thread = threading.Thread(target=other)
    if place == "meanwhile":
        thread.start()
        assert entered.wait(timeout=30)
    elif place == "release_workers":
        monkeypatch.setattr(module, "release_workers", interrupt)
    with pytest.raises(KeyboardInterrupt), lease.hold("engine", interrupt):
        interrupt()
    monkeypatch.undo()
    if place != "meanwhile":
        thread.start()
    thread.join(timeout=30)
    assert not thread.is_alive()
    with lease.hold("engine"):
        assert "holder='engine', waiting=0" in repr(lease)
