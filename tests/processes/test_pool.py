"""Calls in processes of their own: results, errors, deadlines, crashes, output without end, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ludus.errors import UserError
from ludus.machine import Machine
from ludus.processes.calls import (
    Crashed,
    Raised,
    RemoteFunction,
    Returned,
    TimedOut,
    WorkerCall,
    WorkerCrashedError,
    WorkerTimeoutError,
)
from ludus.processes.pool import WorkerPool
from tests.processes.conftest import wait_until_gone


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(1) as pool:
        yield pool


@pytest.fixture(scope="module")
def pair() -> Iterator[WorkerPool]:
    with WorkerPool(2) as pool:
        yield pool


def wait_until_written(path: Path) -> None:
    while not path.exists() or not path.read_text():
        time.sleep(0.01)


class OddError(Exception):
    """An error that cannot be made again from its arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)
        self.lock = threading.Lock()


def test_a_call_runs_elsewhere_and_returns(pool: WorkerPool) -> None:
    """A closure runs in another process, with positional and named arguments."""
    offset = 40

    def add(number: int, *, more: int) -> tuple[int, int]:
        return number + more + offset, os.getpid()

    value, pid = pool.call_blocking(add, (1,), {"more": 1})
    assert value == 42
    assert pid in pool.pids()
    assert pid != os.getpid()


def test_coroutines_are_awaited_there_and_leave_no_tasks(pool: WorkerPool) -> None:
    """All calls of a process share an event loop; what a call leaves running is cancelled."""

    async def call(ended: list[str]) -> tuple[int, int]:
        async def forever() -> None:
            await asyncio.Event().wait()

        task = asyncio.create_task(forever())
        await asyncio.sleep(0)
        assert not task.done()
        return id(asyncio.get_running_loop()), len(asyncio.all_tasks())

    first = pool.call_blocking(call, ([],))
    assert pool.call_blocking(call, ([],)) == first


def test_an_error_comes_back_as_itself(pool: WorkerPool) -> None:
    """An error of the function is raised here with its traceback as a note."""

    def fail() -> None:
        raise KeyError("question")

    with pytest.raises(KeyError, match="question") as raised:
        pool.call_blocking(fail)
    assert "in fail" in raised.value.__notes__[0]


def test_an_error_that_cannot_travel_comes_back_in_words(pool: WorkerPool) -> None:
    """An error that does not pickle is a RuntimeError with the same words; so is sys.exit, which ends only its call."""

    def odd() -> None:
        raise OddError("a", "b")

    with pytest.raises(RuntimeError, match="OddError: ab"):
        pool.call_blocking(odd)
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        pool.call_blocking(sys.exit, (3,))
    assert pool.call_blocking(os.getpid) in pool.pids()


def test_a_value_that_cannot_travel_is_named(pool: WorkerPool) -> None:
    """A lock can be neither sent nor returned."""
    with pytest.raises(TypeError, match="the value returned, of type lock, cannot leave its process"):
        pool.call_blocking(threading.Lock)
    with pytest.raises(UserError, match="an argument cannot be sent to another process"):
        pool.call_blocking(print, (threading.Lock(),))
    lock = threading.Lock()
    with pytest.raises(UserError, match="the function cannot be sent to another process"):
        pool.call_blocking(lambda: lock)


def test_a_function_whose_module_is_missing_there_is_named(pool: WorkerPool) -> None:
    """What cannot be loaded is the call's error, and the process goes on."""

    class Unloadable:
        def __reduce__(self) -> tuple[object, ...]:
            return __import__, ("no_such_module_anywhere",)

    with pytest.raises(RuntimeError, match=r"could not load what it was sent: .*no_such_module_anywhere"):
        pool.call_blocking(print, (Unloadable(),))
    assert pool.call_blocking(abs, (-1,)) == 1


def test_a_call_that_hangs_is_killed_with_its_children(pool: WorkerPool, tmp_path: Path) -> None:
    """At its deadline a call's process is gone, and so is what it started; the next call has a new process."""
    noted = tmp_path / "pids"

    def hang() -> None:
        child = subprocess.Popen(["sleep", "600"])
        noted.write_text(f"{os.getpid()} {child.pid}")
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
        child.wait()

    with pytest.raises(WorkerTimeoutError, match=r"longer than 1\.0 s"):
        pool.call_blocking(hang, timeout_s=1.0)
    for pid in map(int, noted.read_text().split()):
        wait_until_gone(pid)
    assert pool.call_blocking(abs, (-1,), timeout_s=60) == 1


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (lambda: os._exit(3), "exit status 3"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "killed by SIGSEGV"),
    ],
)
@pytest.mark.usefixtures("has_waitid")
def test_a_crash_is_named(pool: WorkerPool, end: object, how: str) -> None:
    """A process that ends in the middle of a call is told with how it ended, and replaced."""

    def crash() -> None:
        sys.stderr.write("last words\n")
        end()  # type: ignore[operator]

    with pytest.raises(WorkerCrashedError, match=f"{how}.*last words"):
        pool.call_blocking(crash)
    assert pool.call_blocking(abs, (-1,)) == 1


@pytest.mark.usefixtures("has_waitid")
def test_a_fork_that_outlives_a_crash_is_no_hang(pool: WorkerPool, tmp_path: Path) -> None:
    """A forked child that holds the process's sockets hides its end from nobody, and ends with it."""
    noted = tmp_path / "pid"

    def fork_and_end() -> None:
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
        noted.write_text(str(pid))
        os._exit(4)

    with pytest.raises(WorkerCrashedError, match="exit status 4"):
        pool.call_blocking(fork_and_end)
    wait_until_gone(int(noted.read_text()))


def test_a_million_lines_are_bounded_and_block_nobody(pool: WorkerPool) -> None:
    """Of endless output the beginning and the end are kept, with the number of bytes between."""

    def shout() -> str:
        line = "x" * 20 + "\n"
        for _ in range(1000):
            os.write(1, (line * 1000).encode())
        sys.stdout.write("the end\n")
        return "done"

    end = asyncio.run(pool.run(WorkerCall.of(shout, timeout_s=60)))
    assert end.ending == Returned("done")
    assert end.output.num_bytes == 21_000_000 + len("the end\n")
    assert len(end.output.stdout) < 70_000
    assert end.output.stdout.endswith("the end\n")
    assert "bytes left out" in end.output.stdout


def test_output_belongs_to_its_call(pool: WorkerPool) -> None:
    """What a call prints is kept with it, by stream, and not with the next one; children's output counts too."""

    def speak(word: str) -> None:
        sys.stdout.write(word + "\n")
        sys.stderr.write(word.upper() + "\n")
        subprocess.run(["echo", "child"], check=True)

    for word in ("one", "two"):
        output = asyncio.run(pool.run(WorkerCall.of(speak, (word,)))).output
        assert (output.stdout, output.stderr) == (f"{word}\nchild\n", f"{word.upper()}\n")


def test_libraries_compute_with_a_processes_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes together do not take more threads than there are cores; who says otherwise is heard."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    cores = Machine.look(seconds=0).workers  # fewer where a control group has a quota
    for said, expected in ((None, max(1, cores // 4)), ("3", 3)):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if said is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", said)
        for env in (None, os.environ):
            with WorkerPool(4, env=env) as pool:
                assert pool.call_blocking(os.getenv, ("OMP_NUM_THREADS",)) == str(expected)


def test_the_environment_is_the_calls_own(pool: WorkerPool) -> None:
    """Variables are set for the length of a call; what it changes is undone; this process never changes."""

    def read_and_spoil() -> tuple[str | None, str]:
        found = os.environ.get("LUDUS_TEST_A"), os.environ["PATH"]
        os.environ["PATH"] = "spoiled"
        return found

    assert asyncio.run(pool.run(WorkerCall.of(read_and_spoil, env={"LUDUS_TEST_A": "1"}))).result() == (
        "1",
        os.environ["PATH"],
    )
    assert pool.call_blocking(read_and_spoil) == (None, os.environ["PATH"])
    # a function of a module that is frozen into the interpreter is that of the process, which has its own environment
    assert asyncio.run(pool.run(WorkerCall.of(os.getenv, ("LUDUS_TEST_A",), env={"LUDUS_TEST_A": "1"}))).result() == "1"
    assert "LUDUS_TEST_A" not in os.environ


def test_a_kept_function_keeps_its_state(pool: WorkerPool) -> None:
    """A `RemoteFunction` is loaded once in a process, so an instance counts on; a factory runs once in it."""

    class Counter:
        def __init__(self, start: int) -> None:
            self.count = start

        def add(self) -> int:
            self.count += 1
            return self.count

    kept, made = RemoteFunction.of(Counter(10).add), RemoteFunction.made_by(lambda: Counter(20).add)
    assert [pool.call_blocking(kept) for _ in range(3)] == [11, 12, 13]
    assert [pool.call_blocking(made) for _ in range(3)] == [21, 22, 23]
    counter = Counter(0)
    assert [pool.call_blocking(counter.add) for _ in range(3)] == [1, 1, 1]


def test_calls_wait_for_a_free_process(pair: WorkerPool) -> None:
    """Many calls share few processes; all end, and no more processes are started than the pool has."""

    async def many() -> list[int]:
        return await asyncio.gather(*(pair.call(os.getpid) for _ in range(12)))

    assert set(asyncio.run(many())) <= set(pair.pids())
    assert len(pair.pids()) <= 2


def test_a_deadline_begins_with_the_call_not_with_the_queue(pool: WorkerPool) -> None:
    """A call that waited long for its turn has its whole time."""

    async def both() -> list[object]:
        return await asyncio.gather(*(pool.call(time.sleep, (0.8,), timeout_s=2.0) for _ in range(3)))

    assert asyncio.run(both()) == [None, None, None]


def test_a_warm_process_is_used_before_a_new_one_starts() -> None:
    """Calls one after the other share one process of a large pool."""
    with WorkerPool(8) as pool:
        assert len({pool.call_blocking(os.getpid) for _ in range(4)}) == 1
        assert len(pool.pids()) == 1


def test_cancelling_kills_the_process(pair: WorkerPool, tmp_path: Path) -> None:
    """Who stops waiting for a call ends it; a call in another process goes on."""
    noted = tmp_path / "pid"

    def hang() -> None:
        noted.write_text(str(os.getpid()))
        time.sleep(600)

    async def cancel() -> object:
        hanging = asyncio.create_task(pair.call(hang))
        other = asyncio.create_task(pair.call(time.sleep, (0.3,)))
        await asyncio.to_thread(wait_until_written, noted)
        hanging.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await hanging
        return await other

    assert asyncio.run(cancel()) is None
    wait_until_gone(int(noted.read_text()))
    assert pair.call_blocking(abs, (-1,)) == 1


def test_a_call_that_waits_can_be_cancelled(pool: WorkerPool) -> None:
    """A call without a process yet is forgotten, and the one that runs is not touched."""

    async def cancel() -> object:
        running = asyncio.create_task(pool.call(time.sleep, (0.3,)))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(pool.call(os._exit, (1,)))
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        return await running

    assert asyncio.run(cancel()) is None


def test_closing_ends_what_runs_and_what_waits(tmp_path: Path) -> None:
    """After `close` no process is left, every call has ended, and a new one is refused."""
    pool, noted = WorkerPool(1, name="short"), tmp_path / "pid"

    def hang() -> None:
        noted.write_text(str(os.getpid()))
        time.sleep(600)

    async def close_in_the_middle() -> list[object]:
        calls = [asyncio.create_task(pool.run(WorkerCall.of(hang))) for _ in range(2)]
        await asyncio.to_thread(wait_until_written, noted)
        await asyncio.to_thread(pool.close)
        wait_until_gone(int(noted.read_text()))
        return [(await call).ending for call in calls]

    closed = Crashed("the pool 'short' was closed")
    assert asyncio.run(close_in_the_middle()) == [closed, closed]
    assert pool.pids() == ()
    with pytest.raises(UserError, match="'short' was closed"):
        pool.call_blocking(abs, (-1,))


def test_a_forgotten_pool_leaves_no_process() -> None:
    """A pool that nobody holds any more ends its processes by itself."""
    pool = WorkerPool(1)
    pid = pool.call_blocking(os.getpid)
    del pool
    wait_until_gone(pid)


def test_processes_end_with_the_program_even_if_it_is_killed(tmp_path: Path) -> None:
    """A program killed with -9 in the middle of a call leaves no worker behind."""
    script, noted = tmp_path / "script.py", tmp_path / "pid"
    script.write_text(
        "import os, pathlib, sys, time\n"
        "from ludus.processes.pool import WorkerPool\n"
        "def hang(path):\n"
        "    pathlib.Path(path).write_text(str(os.getpid()))\n"
        "    time.sleep(600)\n"
        "WorkerPool(1).call_blocking(hang, (sys.argv[1],))\n"
    )
    with subprocess.Popen([sys.executable, str(script), str(noted)], env={**os.environ, "PYTHONPATH": "."}) as program:
        while not noted.exists() or not noted.read_text():
            assert program.poll() is None, "a script without a guard for its main module can use a pool"
            time.sleep(0.01)
        program.kill()
    wait_until_gone(int(noted.read_text()))


def test_how_it_ended_is_a_value(pool: WorkerPool) -> None:
    """`run` raises nothing for what the function did."""

    async def ends() -> list[type]:
        calls = [
            WorkerCall.of(abs, (-1,)),
            WorkerCall.of(int, ("x",)),
            WorkerCall.of(os._exit, (1,)),
            WorkerCall.of(time.sleep, (600,), timeout_s=0.1),
        ]
        return [type((await pool.run(call)).ending) for call in calls]

    assert asyncio.run(ends()) == [Returned, Raised, Crashed, TimedOut]


def test_nonsense_is_refused() -> None:
    """A pool has a process at least, and a deadline lies ahead."""
    with pytest.raises(UserError, match="num_workers=0"):
        WorkerPool(0)
    with pytest.raises(UserError, match="timeout_s=0"):
        WorkerCall.of(abs, (-1,), timeout_s=0)


def test_a_lease_is_one_process_that_others_do_not_get(pair: WorkerPool) -> None:
    """A lease begins when its first call has ended; its calls share a process; other calls go elsewhere."""

    async def lease() -> None:
        async with pair.lease(WorkerCall.of(os.getpid)) as lease:
            own = [(await lease.run(WorkerCall.of(os.getpid))).result() for _ in range(3)]
            others = {await pair.call(os.getpid) for _ in range(3)}
            assert len(set(own)) == 1
            assert not others & set(own)
        assert await asyncio.gather(*(pair.call(abs, (-1,)) for _ in range(4))) == [1, 1, 1, 1]

    asyncio.run(lease())


def test_a_leased_process_that_dies_is_replaced_in_its_place(pool: WorkerPool) -> None:
    """Its holder goes on with a new process, also right after giving a call up; then the place is free again."""

    async def lease() -> None:
        async with pool.lease(WorkerCall.of(os.getpid)) as lease:
            assert isinstance((await lease.run(WorkerCall.of(os._exit, (1,)))).ending, Crashed)
            hanging = asyncio.create_task(lease.run(WorkerCall.of(time.sleep, (600,))))
            await asyncio.sleep(0.05)
            hanging.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await hanging
            assert (await lease.run(WorkerCall.of(abs, (-1,)))).result() == 1
        assert await pool.call(abs, (-1,)) == 1

    asyncio.run(lease())


def test_a_lease_that_is_given_up_frees_its_place(pool: WorkerPool) -> None:
    """Whoever waits for a lease, or whose first call fails, leaves no place taken."""

    async def lease() -> None:
        with pytest.raises(KeyError):
            async with pool.lease(WorkerCall.of({}.__getitem__, ("x",))):
                pytest.fail("a lease begins only when its first call has returned")
        async with pool.lease(WorkerCall.of(abs, (-1,))):
            waiting = asyncio.create_task(pool.lease(WorkerCall.of(abs, (-1,))).__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
        assert await pool.call(abs, (-1,)) == 1

    asyncio.run(lease())
