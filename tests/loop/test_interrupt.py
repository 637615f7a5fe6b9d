"""Ctrl-C: asks first, leaves on the second, and is restored as it was."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from ludus.loop.interrupt import Interrupts


def test_the_first_interrupt_asks_and_the_second_leaves() -> None:
    """One SIGINT wakes whoever waits; another raises KeyboardInterrupt; then the old handler is back."""
    before = signal.getsignal(signal.SIGINT)

    async def main(interrupts: Interrupts) -> None:
        waiting = asyncio.ensure_future(interrupts.wait())
        await asyncio.sleep(0)
        signal.raise_signal(signal.SIGINT)
        await asyncio.wait_for(waiting, 5)

    with Interrupts() as interrupts:
        assert not interrupts.requested
        asyncio.run(main(interrupts))
        assert interrupts.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


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
