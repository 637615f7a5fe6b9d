"""The threads that kernels share their work among where the compiler has no OpenMP.

1. Every part is done once, also when several ask at once, after a fork, and where no thread can be started.
2. So many threads work at once as are asked for; then they sleep.
3. The bits are those of OpenMP's threads.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ludus.kernels.build import OPENMP, POOL, build_library, build_of, compile_source, find_compiler, source_path
from ludus.kernels.library import ADDRESS, COUNT, DTYPES, SIZE, AttentionRule, load_library
from ludus.kernels.rounding import NativeRounding
from ludus.kernels.rowwise import NativeRowwise, NormRule
from ludus.kernels.tree import Forest, NativeTree

WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)
SHARE = ctypes.CFUNCTYPE(None, ctypes.c_int32, WORK, ctypes.c_void_p)
WAIT_S = 30.0
THREADS = Path("/proc/self/task")
BLOCK = 4096  # numbers of a task of rounding.cpp, and what is worth another thread


def share(num_workers: int, work: Callable[[int], None]) -> None:
    ctypes.CDLL(str(build_library(POOL))).ludus_share(num_workers, WORK(lambda _, worker: work(worker)), None)


def meet(num_workers: int) -> set[int]:
    """The system's ids of the threads that work, each of which waits until all of them do."""
    everybody, ids = threading.Barrier(num_workers), list[int]()

    def work(_worker: int) -> None:
        everybody.wait(WAIT_S)
        ids.append(threading.get_native_id())

    share(num_workers, work)
    assert len(ids) == num_workers
    return set(ids)


def test_as_many_threads_work_at_once_as_are_asked_for() -> None:
    """The caller among them; more are started as more are asked for, and none for fewer."""
    three = meet(3)
    assert len(three) == 3 and threading.get_native_id() in three
    assert len(meet(5)) == 5 and len(meet(2)) == 2


@pytest.mark.skipif(not THREADS.exists(), reason="the system does not tell of threads")
def test_a_thread_without_work_sleeps() -> None:
    others = meet(4) - {threading.get_native_id()}
    give_up_at = time.monotonic() + WAIT_S
    while awake := {each for each in others if _state(each) != "S"}:
        assert time.monotonic() < give_up_at, awake


def _state(thread: int) -> str:
    return Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]


def test_several_may_ask_at_once() -> None:
    """Each gets all of its parts done, each part once, before it goes on."""
    wrong = []

    def ask(num_workers: int) -> None:
        for _ in range(200):
            done: list[int] = []
            share(num_workers, done.append)
            if sorted(done) != list(range(num_workers)):
                wrong.append((num_workers, done))

    callers = [threading.Thread(target=ask, args=(number,)) for number in (2, 3, 4, 7)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert not wrong


PROGRAM = """
import ctypes, os, resource, sys, threading

WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)
pool = ctypes.CDLL(sys.argv[1])

def share(num, work):
    pool.ludus_share(num, WORK(lambda _, worker: work(worker)), None)

def threads_that_meet(num):
    everybody, seen = threading.Barrier(num), []
    share(num, lambda worker: seen.append((everybody.wait(20), threading.get_native_id())[1]))
    return len(set(seen))
"""


def run(program: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM + program, str(build_library(POOL))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S * 2, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system forks no processes")
def test_a_process_that_was_forked_off_has_threads_of_its_own() -> None:
    """Also when it was forked off in the middle of work of its parent's threads, which it does not have."""
    assert run("""
assert threads_that_meet(3) == 3
begun, go_on = threading.Event(), threading.Event()
busy = threading.Thread(target=share, args=(3, lambda worker: (begun.set(), go_on.wait(20))))
busy.start()
begun.wait(20)
child = os.fork()
if child == 0:
    os._exit(threads_that_meet(4))
go_on.set()
busy.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), threads_that_meet(3))
""").split() == ["4", "3"]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell of memory")
def test_where_no_thread_can_be_started_the_caller_does_all() -> None:
    """A limit on memory leaves no room for a thread's stack."""
    assert run("""
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 2**20, resource.RLIM_INFINITY))
done = []
share(4, lambda worker: done.append((worker, threading.get_native_id() == os.getpid())))
print(sorted(done) == [(worker, True) for worker in range(4)])
""").split() == ["True"]


# ---- the kernels ----


@pytest.fixture(scope="session")
def without_openmp(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A library as it is, but for OpenMP."""
    folder = tmp_path_factory.mktemp("threads")

    def build(name: str) -> Path:
        compiler, library = find_compiler(), folder / f"{name}.so"
        made = build_of(build_library(name))
        if not made.has_openmp:
            return build_library(name)
        if not library.exists():
            flags = made.flags[: len(made.flags) - len(compiler.flags)]  # the user's come last, and are added again
            variant = tuple("-fopenmp-simd" if flag == OPENMP else flag for flag in flags)
            compile_source(compiler, source_path(name), library, [variant])
        return library

    return build


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_more_work_is_shared_among_more_threads(without_openmp: Callable[[str], Path]) -> None:
    """Of those that torch was told, one for what is worth one; a little is done by the caller without a word."""
    library, asked = ctypes.CDLL(str(without_openmp("rounding"))), list[int]()

    @SHARE
    def count(num_workers: int, work: Callable[[int | None, int], None], body: int | None) -> None:
        asked.append(num_workers)
        for worker in range(num_workers):
            work(body, worker)

    round_numbers = NativeRounding(without_openmp("rounding"))
    library.ludus_use_threads(count)
    for num_blocks in (1, 2, 3, 100):
        master, rounded = torch.full((num_blocks * BLOCK,), 0.75), torch.zeros(num_blocks * BLOCK, dtype=torch.bfloat16)
        round_numbers(master, rounded, first=0, key=1)
        assert bool((rounded == 0.75).all())
    assert asked == [2, 3, 3]
    library.ludus_use_threads(None)
    round_numbers(master, rounded.zero_(), first=0, key=1)
    assert bool((rounded == 0.75).all()) and len(asked) == 3
    load_library(without_openmp("rounding"), {})  # others use it with its threads


@pytest.mark.skipif(not THREADS.exists(), reason="the system does not tell of threads")
@pytest.mark.usefixtures("three_threads")
def test_a_kernel_works_on_them(without_openmp: Callable[[str], Path]) -> None:
    """A library that is loaded is handed them without a word: more workers than there are threads start some."""
    master, rounded = torch.full((300 * BLOCK,), 0.75), torch.zeros(300 * BLOCK, dtype=torch.bfloat16)
    round_numbers = NativeRounding(without_openmp("rounding"))
    num_before = sum(1 for _ in THREADS.iterdir())
    torch.set_num_threads(num_before + 2)
    round_numbers(master, rounded, first=0, key=1)
    assert sum(1 for _ in THREADS.iterdir()) > num_before
    assert bool((rounded == 0.75).all())


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def round_all(library: Path, dtype: torch.dtype) -> list[Tensor]:
    rounded = torch.empty(5 * BLOCK + 7, dtype=torch.bfloat16)
    NativeRounding(library)(draw(len(rounded), dtype=torch.float32), rounded, first=3, key=5)
    return [rounded]


def multiply(library: Path, dtype: torch.dtype) -> list[Tensor]:
    rows = ADDRESS, SIZE
    signature = (*rows, *rows, ADDRESS, *rows, COUNT, SIZE, SIZE, SIZE, COUNT, COUNT)
    function = load_library(library, {"ludus_linear": signature}).ludus_linear
    x, weight = draw(333, 290, dtype=dtype), draw(500, 290, dtype=dtype, seed=1)
    out = torch.empty(333, 500, dtype=dtype)
    at = x.data_ptr(), 290, weight.data_ptr(), 290, None, out.data_ptr(), 500
    function(*at, 0, 333, 500, 290, DTYPES[dtype], 3)
    return [out]


def norm(library: Path, dtype: torch.dtype) -> list[Tensor]:
    ops, rule = NativeRowwise(library), NormRule(1e-5, 0.0, casts_first=True)
    x, grad, weight = draw(777, 200, dtype=dtype), draw(777, 200, dtype=dtype, seed=1), draw(200, dtype=dtype, seed=2)
    backward = ops.norm_backward(grad, x, weight, rule, wants_weight=True)
    return [ops.norm(x, weight, rule), *(each for each in backward if each is not None)]


def attend(library: Path, dtype: torch.dtype) -> list[Tensor]:
    kernel, rule = NativeTree(library), AttentionRule(0.2, None, None)
    forest = Forest(torch.tensor([200] * 120 + [160] * 40 + [200] * 40, dtype=torch.int32), torch.arange(200).int())
    q, k, v = (draw(1, heads, 200, 32, dtype=dtype, seed=heads) for heads in (6, 2, 3))
    output, kept = kernel.attend(q, k, v[:, :2], forest, rule)
    grad = draw(1, 200, 6, 32, dtype=dtype)
    return [output, *kernel.differentiate(grad, q, k, v[:, :2], kept, forest, rule)]


@pytest.mark.parametrize(
    ("name", "compute"), [("rounding", round_all), ("linear", multiply), ("rowwise", norm), ("tree", attend)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("three_threads")
@pytest.mark.timeout(300)  # a library is compiled, twice where it was not yet
def test_the_bits_are_those_of_openmp(
    name: str,
    compute: Callable[[Path, torch.dtype], list[Tensor]],
    dtype: torch.dtype,
    without_openmp: Callable[[str], Path],
) -> None:
    ours, theirs = compute(without_openmp(name), dtype), compute(build_library(name), dtype)
    assert b"ludus_use_threads" in without_openmp(name).read_bytes()
    assert ours and all(torch.equal(own, other) for own, other in zip(ours, theirs, strict=True))
