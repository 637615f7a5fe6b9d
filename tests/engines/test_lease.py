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
    """A holder that raises does not keep the lease: another has its turn."""
    lease = ComputeLease()
    try:
        with lease.hold("engine"):
            raise ValueError
    except ValueError:
        pass
    with lease.hold("trainer"):
        assert "'trainer'" in repr(lease)


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


def asks(lease: ComputeLease, order: list[str], name: str, *, is_read_only: bool) -> threading.Thread:
    """A thread that waits for its turn already."""

    def work() -> None:
        with lease.hold(name, is_read_only=is_read_only):
            order.append(name)

    waiting = int(repr(lease).partition("waiting=")[2].rstrip(")"))
    thread = threading.Thread(target=work)
    thread.start()
    while f"waiting={waiting + 1}" not in repr(lease):
        pass
    return thread


def test_who_gives_way_is_passed_by_those_that_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of asking, up to the first that has to wait for the end; then the holder goes on."""
    monkeypatch.setattr(module, "_SLICE_S", 0.0)
    lease, order = ComputeLease(), list[str]()
    with lease.hold("trainer"):
        lease.give_way()  # nobody waits
        names = [("step", True), ("score", True), ("publish", False), ("late step", True)]
        threads = [asks(lease, order, name, is_read_only=is_read_only) for name, is_read_only in names]
        lease.give_way()
        assert order == ["step", "score"]
        assert "holder='trainer', waiting=2" in repr(lease)
        lease.give_way()  # the publish is before the next step, and waits for the end
        order.append("trainer")
    for thread in threads:
        thread.join()
    assert order == ["step", "score", "trainer", "publish", "late step"]


def test_who_gives_way_keeps_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder goes on for as long as the others took last; by a clock that only the test moves."""
    now = 0.0
    monkeypatch.setattr(module.time, "perf_counter", lambda: now)
    lease = ComputeLease()

    def work() -> None:
        nonlocal now
        with lease.hold("engine", is_read_only=True):
            now += 3.0

    with lease.hold("trainer"):
        for _ in range(5):
            thread = threading.Thread(target=work)
            thread.start()
            while "waiting=1" not in repr(lease):
                pass
            while thread.is_alive() and "waiting=1" in repr(lease):
                now += 0.25
                lease.give_way()
            thread.join()
    engine_s = 5 * 3.0
    assert abs(now - engine_s - 12.0) < 1.0


@pytest.mark.parametrize("place", ["release_workers", "meanwhile", "inside", "give_way"])
def test_an_interrupt_leaks_nothing(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it comes, the lease is free afterwards, and nobody who waited is left behind."""
    lease, entered, told = ComputeLease(), threading.Event(), threading.Event()

    def interrupt() -> None:
        told.set()
        raise KeyboardInterrupt

    def other() -> None:
        with lease.hold("trainer", is_read_only=True):
            entered.set()
            assert told.wait(timeout=30)

    thread = threading.Thread(target=other)
    if place == "meanwhile":
        thread.start()
        assert entered.wait(timeout=30)
    elif place == "release_workers":
        monkeypatch.setattr(module, "release_workers", interrupt)
    with pytest.raises(KeyboardInterrupt), lease.hold("engine", interrupt):
        if place == "give_way":
            monkeypatch.setattr(lease, "_slice_s", 0.0)
            thread.start()
            while "waiting=1" not in repr(lease):
                pass
            monkeypatch.setattr(lease._changed, "wait_for", lambda _: interrupt())
            lease.give_way()
        interrupt()
    monkeypatch.undo()
    if place not in ("meanwhile", "give_way"):
        thread.start()
    thread.join(timeout=30)
    assert not thread.is_alive()
    with lease.hold("engine"):
        assert "holder='engine', waiting=0" in repr(lease)
