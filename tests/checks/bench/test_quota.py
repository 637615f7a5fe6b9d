"""A container that may use two of its machine's 64 cores: with how many threads everything there computes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ludus.checks.bench.workloads import QuotaWork, SampleWork, TrainWork
from ludus.checks.preload import shown_cores

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the library is preloaded as Linux does it")

SCRIPT = """
import asyncio, json, os, sys
from pathlib import Path
from pydantic import TypeAdapter
from ludus.api.cores import shared_cores
from ludus.checks.bench.quota import measure_quota
from ludus.checks.bench.workloads import QuotaWork
from ludus.config import load_config
from ludus.machine import Machine
from ludus.processes.calls import RemoteFunction
from ludus.processes.pool import WorkerPool
from ludus.rewards.answers import MathVerifier
from ludus.rewards.wrapper import AsyncRewardWrapper

async def threads_of_workers(number):
    pool = WorkerPool(number, name="test")
    try:
        return await pool.call(RemoteFunction.of(os.getenv), ("OMP_NUM_THREADS",))
    finally:
        pool.close()

work = TypeAdapter(QuotaWork).validate_json(Path(sys.argv[1]).read_text())
machine = Machine.look(seconds=0)
computing = {row["work"]: row["threads"] for row in asyncio.run(measure_quota(work))["rows"]}
with MathVerifier() as verifier:
    verifiers = repr(verifier)
print(json.dumps({
    "machine": [os.cpu_count(), machine.cores, machine.quota, machine.workers],
    "computing": computing,
    "ranks": shared_cores(load_config(overrides=["trainer.ranks=2"]), machine.workers),
    "verifiers": verifiers,
    "rewards": AsyncRewardWrapper(abs).max_workers,
    "workers": [asyncio.run(threads_of_workers(number)) for number in (1, 2, 8)],
}))
"""


@pytest.fixture
def works(small_sample: SampleWork, small_train: TrainWork, tmp_path: Path) -> Path:
    file = tmp_path / "work.json"
    file.write_text(json.dumps(asdict(QuotaWork(replace(small_sample, batches=small_sample.batches[:1]), small_train))))
    return file


def test_two_of_64_cores_are_two_threads_everywhere(works: Path) -> None:
    """Engine and trainer compute with two; ranks, verifiers and worker processes share two."""
    pytest.importorskip("math_verify")
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with shown_cores(64, 2) as shown:
        command = [sys.executable, "-c", SCRIPT, str(works)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment | shown, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["machine"] == [64, 64, 2.0, 2]
    assert found["computing"] == {"sampling": 2, "training": 2}
    assert found["ranks"] == {"head": 1, "trainer": 1}
    assert found["rewards"] == 1 and found["workers"] == ["2", "1", "1"]
    assert "workers=2" in found["verifiers"]
    assert "its control group allows 2 of 64 cores" in done.stderr


def test_without_the_quota_it_would_be_64() -> None:
    """What is shown is seen by what computes: the test above could fail."""
    script = "import os, torch; print(os.cpu_count(), len(os.sched_getaffinity(0)), torch.get_num_threads())"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with shown_cores(64, 2) as shown:
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, env=environment | shown, check=True)
    assert done.stdout.split() == ["64", "64", "64"]
