"""The compute lease: one holder at a time, first come first served."""

from __future__ import annotations

import threading

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
