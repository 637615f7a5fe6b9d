"""The machine: cores by affinity, quota and load, from files like those of a container."""

import os
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path

import pytest

from ludus.machine import Machine, free_memory_bytes

CORES = 64


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], Path]:
    """A root folder with these files, of a machine with 64 cores that this process may all use."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(CORES)), raising=False)

    def build(files: dict[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return build


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, inf),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2.0),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/outside/it\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4.0),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, inf),
        (
            {
                "proc/self/cgroup": "9:memory:/x\n4:cpu,cpuacct:/docker/1\n",
                "sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            inf,
        ),
    ],
)
def test_quotas_of_both_versions_of_control_groups_limit_it(
    files: dict[str, str], quota: float, root: Callable[[dict[str, str]], Path]
) -> None:
    """The smallest quota on the way up counts, also in a container that sees its own group as the base."""
    machine = Machine.look(root(files), seconds=0)
    assert machine == Machine(CORES, quota)
    assert machine.threads == machine.workers == max(1, int(min(quota, CORES)))


@pytest.mark.parametrize(
    ("machine", "threads"),
    [
        (Machine(2), 2),
        (Machine(2, busy=1.05), 1),
        (Machine(2, busy=0.3), 2),
        (Machine(2, busy=2.4), 1),
        (Machine(64, quota=2.0), 2),
        (Machine(64, quota=2.0, busy=60.0), 2),
        (Machine(64, quota=0.5), 1),
        (Machine(16, busy=8.0), 8),
    ],
)
def test_threads_are_the_cores_that_are_free(machine: Machine, threads: int) -> None:
    """What others keep busy is left to them, unless nothing were left."""
    assert machine.threads == threads


def test_two_threads_of_one_core_are_one_core_to_compute_on(root: Callable[[dict[str, str]], Path]) -> None:
    """Processes may have both; where the system does not tell, each counts."""
    place = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    told = {place.format(core): f"{core % 32},{core % 32 + 32}\n" for core in range(CORES)}
    machine = Machine.look(root(told), seconds=0)
    assert (machine.whole_cores, machine.workers, machine.most_threads, machine.threads) == (32, 64, 32, 32)
    (root({}) / place.format(5)).unlink()
    assert Machine.look(root({}), seconds=0).most_threads == CORES


def test_a_mac_is_known_by_its_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has no bf16 from one that has it, since what is compiled or measured is kept for each. Slow cores do
    not compute."""
    told = {
        "machdep.cpu.brand_string": b"Apple M2\0",
        "hw.perflevel0.physicalcpu": (4).to_bytes(4, sys.byteorder),
        "hw.optional.AdvSIMD": (1).to_bytes(4, sys.byteorder),
        "hw.optional.arm.FEAT_BF16": (1).to_bytes(4, sys.byteorder),
        "hw.optional.arm.FEAT_I8MM": (0).to_bytes(4, sys.byteorder),
    }
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr("ludus.machine._sysctl", lambda name: told.get(name, b""))
    machine = Machine.look(seconds=0)
    assert (machine.processor, machine.instructions) == ("Apple M2", ("asimd", "bf16"))
    assert machine.cores == 8 and machine.whole_cores == 4


def test_processor_and_memory_are_those_of_this_process(root: Callable[[dict[str, str]], Path]) -> None:
    """The name, the instruction sets that matter, and the memory of the control group if that is less than there is."""
    folder = root(
        {
            "proc/cpuinfo": "processor : 0\nmodel name : Some CPU\nflags : fpu sse4_2 avx2 fma\n\nprocessor : 1\n",
            "proc/meminfo": "MemTotal:       8000 kB\nMemFree: 1 kB\n",
            "proc/self/cgroup": "0::/a\n",
        }
    )
    machine = Machine.look(folder, seconds=0)
    assert (machine.processor, machine.instructions) == ("Some CPU", ("sse4_2", "avx2", "fma"))
    assert machine.memory_bytes == 8000 * 1024
    limited = root({"sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/memory.max": "4096000\n"})
    assert Machine.look(limited, seconds=0).memory_bytes == 4096000


def test_load_is_that_of_others_at_equal_priority(root: Callable[[dict[str, str]], Path]) -> None:
    """Ticks of user and system time on the cores that may be used count, those of processes that give way do not."""
    before = "cpu 9 9 9 9\ncpu0 100 50 100 5\ncpu1 0 0 0 9\ncpu99 5 5 5 5\nintr 1\n"
    folder = root({"proc/stat": before})
    ticks = os.sysconf("SC_CLK_TCK")

    def pass_time(seconds: float) -> None:
        more = int(seconds * ticks)
        (folder / "proc/stat").write_text(
            f"cpu 0 0 0 0\ncpu0 {100 + more} 500 100 5\ncpu1 0 0 {more} 9\ncpu99 999 0 0 0\n"
        )

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ludus.machine.time.sleep", pass_time)
        assert Machine.look(folder, seconds=10.0).busy == pytest.approx(2.0, abs=0.05)


def test_free_memory_is_what_the_system_and_its_groups_leave(root: Callable[[dict[str, str]], Path]) -> None:
    """The least of them; files in memory can be read again, so they count as free."""
    files = {"proc/meminfo": "MemTotal: 900 kB\nMemAvailable: 500 kB\n", "proc/self/cgroup": "0::/\n"}
    assert free_memory_bytes(root(files)) == 500 * 1024
    group = {
        "sys/fs/cgroup/memory.max": "400000\n",
        "sys/fs/cgroup/memory.current": "390000\n",
        "sys/fs/cgroup/memory.stat": "anon 300000\nfile 90000\nfile_mapped 5\n",
    }
    assert free_memory_bytes(root({**files, **group})) == 100_000
    in_memory = {**group, "sys/fs/cgroup/memory.stat": "anon 300000\nfile 90000\nshmem 50000\n"}
    assert free_memory_bytes(root({**files, **in_memory})) == 50_000, "files of /dev/shm stay"
    assert free_memory_bytes(root({**files, "proc/meminfo": "", "sys/fs/cgroup/memory.max": "max\n"})) is None


def test_free_memory_in_a_group_of_the_first_version(root: Callable[[dict[str, str]], Path]) -> None:
    """Of itself and of the groups in it."""
    files = {
        "proc/meminfo": "MemTotal: 900 kB\nMemAvailable: 500 kB\n",
        "proc/self/cgroup": "5:memory:/docker/1\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "400000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "390000\n",
        "sys/fs/cgroup/memory/memory.stat": "cache 5\nshmem 5\ntotal_cache 90000\ntotal_shmem 50000\n",
    }
    assert free_memory_bytes(root(files)) == 50_000
