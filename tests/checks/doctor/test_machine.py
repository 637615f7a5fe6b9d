"""What is advised for a machine is what would make it faster, and nothing where nothing would."""

from __future__ import annotations

import pytest

from ludus.checks.doctor import machine as module
from ludus.kernels.build import Build
from ludus.machine import Machine
from ludus.models.dtype import ProductTimes

QUICK = ProductTimes(bfloat16_s=1.0, float32_s=2.0)
KERNELS: dict[str, Build | str] = {"linear": Build("g++", ("-march=native", "-fopenmp"))}


def advice(machine: Machine, threads: int) -> str:
    return " / ".join(module._advice(machine, threads, QUICK, KERNELS, has_card=True))


@pytest.mark.parametrize(
    ("machine", "threads", "told", "said"),
    [
        (Machine(16, busy=0.1, whole_cores=8), 8, None, ""),
        (Machine(16, busy=0.1, whole_cores=8), 8, "8", ""),
        (Machine(16, busy=0.1, whole_cores=8), 4, "4", "OMP_NUM_THREADS=4 of 8 cores: unset it"),
        (Machine(16, busy=12.1, whole_cores=8), 4, None, "others keep 12.1 of 16 cores busy"),
        (Machine(64, quota=2.0), 2, None, "its control group allows 2 of 64 cores"),
        (Machine(2), 2, None, ""),
    ],
)
def test_threads_are_spoken_of_only_where_more_would_compute(
    machine: Machine, threads: int, told: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second threads of cores that compute already are no cores that somebody keeps busy."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if told is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", told)
    monkeypatch.setattr(module, "has_apple_gpu", lambda: False)
    monkeypatch.setattr(module, "caps_set", list)
    found = advice(machine, threads)
    assert said in found and bool(said) == bool(found)
