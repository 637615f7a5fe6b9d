"""Signals that end a run: the first asks, the second leaves, and all is restored."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time

import pytest

from ludus.loop.interrupt import END_SIGNALS, Interrupts


@pytest.mark.parametrize("number", END_SIGNALS)
def test_the_first_signal_asks_and_the_second_leaves(number: signal.Signals) -> None:
    """One wakes whoever waits; another raises KeyboardInterrupt; then the old handlers are back."""
    before = [signal.getsignal(each) for each in END_SIGNALS]

    async def main(interrupts: Interrupts) -> None:
        waiting = asyncio.ensure_future(interrupts.wait())
        await asyncio.sleep(0)
        signal.raise_signal(number)
        await asyncio.wait_for(waiting, 5)

    with Interrupts() as interrupts:
        assert not interrupts.requested
        asyncio.run(main(interrupts))
        assert interrupts.requested and interrupts.signal == number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert [signal.getsignal(each) for each in END_SIGNALS] == before


def test_the_end_of_a_terminal_never_leaves_at_once() -> None:
    """It is said twice where a shell closes too, and behind SIGTERM by systemd: the run goes on saving."""
    with Interrupts() as interrupts:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGHUP):
            signal.raise_signal(number)
        assert interrupts.signal == signal.SIGTERM


def test_who_swallows_the_second_hears_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the block is left: a library that is being loaded may catch everything."""
    monkeypatch.setattr("ludus.loop.interrupt._AGAIN_S", 0.01)
    with Interrupts():
        signal.raise_signal(signal.SIGTERM)
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                time.sleep(5)


def test_nohup_stays() -> None:
    """What was started deaf to the end of its terminal is not woken by it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGHUP)
            assert not interrupts.requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_the_main_thread_nothing_is_touched() -> None:
    """In a worker thread the handler stays, and `request` does what Ctrl-C would."""
    before = signal.getsignal(signal.SIGINT)
    handlers = []

    def work() -> None:
        with Interrupts() as interrupts:
            handlers.append(signal.getsignal(signal.SIGINT))
            interrupts.request()
            asyncio.run(asyncio.wait_for(interrupts.wait(), 5))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [before]
