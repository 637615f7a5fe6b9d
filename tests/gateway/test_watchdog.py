"""The watchdog names what blocks a loop, while it blocks it."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from ludus.gateway.watchdog import Blockage, LoopWatchdog


def test_blocking_call_is_named_while_it_blocks() -> None:
    """The task's name, the innermost line and the agent's own line are reported before the call returns, once."""
    written: queue.Queue[Blockage] = queue.Queue()
    go_on = threading.Event()

    def on_blocked(blockage: Blockage) -> None:
        written.put(blockage)
        go_on.set()

    async def agent() -> None:
        go_on.wait()

    async def main() -> None:
        with LoopWatchdog(asyncio.get_running_loop(), blocked_s=0.3, on_blocked=on_blocked) as watchdog:
            beaten = asyncio.Event()
            asyncio.get_running_loop().call_later(0.12, beaten.set)
            await beaten.wait()
            await asyncio.create_task(agent(), name="agent-7")
            assert watchdog.num_blockages == 1

    asyncio.run(main())
    blockage = written.get_nowait()
    assert written.empty()
    assert blockage.task == "agent-7"
    assert blockage.blocked_s >= 0.25
    assert "threading.py" in blockage.line
    assert blockage.caller.endswith("in agent") and __file__ in blockage.caller
    assert "agent-7" in str(blockage)


def _num_blockages(work: Iterator[Callable[[], object]]) -> int:
    """How often a loop was called blocked that runs each piece of work in a callback of its own."""

    async def main() -> int:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def run_all() -> None:
            for call in work:
                loop.call_soon(call)
            loop.call_soon(done.set)

        with LoopWatchdog(loop, blocked_s=0.3) as watchdog:
            await asyncio.sleep(0.12)  # the watchdog has heard the loop once
            run_all()
            await done.wait()
            return watchdog.num_blockages

    return asyncio.run(main())


def test_loop_with_too_much_to_do_is_not_blocked() -> None:
    """A loop that is late because of many callbacks, each of them short, is blocked by none of them."""
    assert _num_blockages(lambda: time.sleep(0.03) for _ in range(15)) == 0


def test_only_the_users_code_is_blamed() -> None:
    """A library that takes long, called by nobody's code, is no mistake of the user's."""
    assert _num_blockages(iter([partial(time.sleep, 0.8)])) == 0
    assert _num_blockages(iter([lambda: time.sleep(0.8)])) == 1


def test_loop_that_waits_is_not_blocked() -> None:
    """A loop whose tasks all wait is alive, and nothing is reported."""

    async def main() -> int:
        with LoopWatchdog(asyncio.get_running_loop(), blocked_s=0.05) as watchdog:
            waited = asyncio.Event()
            asyncio.get_running_loop().call_later(0.1, waited.set)
            await waited.wait()
            return watchdog.num_blockages

    assert asyncio.run(main()) == 0


def test_watchdog_ends_with_its_loop() -> None:
    """A watchdog whose loop was closed ends by itself, and can be stopped still."""
    loop = asyncio.new_event_loop()
    loop.close()
    watchdog = LoopWatchdog(loop, blocked_s=0.01)
    watchdog.start()
    watchdog.stop()
    watchdog.stop()
    assert watchdog.num_blockages == 0
