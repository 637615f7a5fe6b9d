"""What becomes of processes where the system forbids a call: they do without it, or say that it is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the calls are Linux's")

WITHOUT = Path(__file__).with_name("without.py")
SANDBOX = """
import asyncio
from ludus.errors import UserError
from ludus.processes.sandbox import run_python
try:
    print(asyncio.run(run_python("print(1)")).stdout)
except UserError as error:
    print(error)
print(asyncio.run(run_python("print(2)", walled="none")).stdout)
"""
VERIFIER = """
from ludus.errors import UserError
from ludus.rewards.programs import code_verify_call
info = {"q": {"input_output": {"inputs": ["2"], "outputs": ["4"]}}}
for program in ("print(4)", "print(5)"):
    try:
        print(code_verify_call(info, [program], ["q"]))
    except UserError as error:
        print(error)
print(code_verify_call(info, ["print(4)", "print(5)"], ["q", "q"], sandbox="none"))
"""
POOL = """
import asyncio, os
from ludus.errors import LudusError
from ludus.processes.calls import RemoteFunction
from ludus.processes.pool import WorkerPool
async def main():
    pool = WorkerPool(1, name="test")
    print(hasattr(os, "waitid"), await pool.call(RemoteFunction.of(abs), (-1,)))
    try:
        await pool.call(RemoteFunction.of(os._exit), (3,))
    except LudusError as error:
        print(error)
    pool.close()
asyncio.run(main())
"""
CHILD = """
import subprocess, sys
from ludus.processes.end_with_parent import end_with_parent
print(subprocess.run(end_with_parent((sys.executable, "-c", "print(1)")), capture_output=True, text=True).stdout)
"""


def run_without(calls: str, script: str) -> str:
    command = [sys.executable, str(WITHOUT), calls, sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("calls", "missing"),
    [("prctl", "prctl"), ("namespaces", "unshare"), ("mount_setattr", r"mount_setattr (Linux 5.12)")],
)
def test_the_sandbox_says_what_it_lacks(calls: str, missing: str) -> None:
    """And runs nothing, but where its user told it to."""
    refusal, ran = run_without(calls, SANDBOX).strip().splitlines()
    assert refusal.startswith(f"this system cannot keep a model's code in: namespaces: {missing}: Operation not perm")
    assert "bubblewrap" in refusal and "sandbox: none" in refusal
    assert ran == "2"


@pytest.mark.parametrize("calls", ["prctl", "namespaces", "mount_setattr"])
def test_no_program_is_scored_that_could_not_run(calls: str) -> None:
    """Neither the right one nor the wrong one; unprotected they are."""
    *refusals, scores = run_without(calls, VERIFIER).strip().splitlines()
    assert len(refusals) == 2 and all("cannot keep a model's code in" in each for each in refusals)
    assert scores == "[1.0, 0.0]"


@pytest.mark.parametrize("calls", ["landlock", "seccomp", "functions"])
@pytest.mark.usefixtures("sandbox")
def test_what_the_sandbox_does_not_need(calls: str) -> None:
    """Landlock, the newer way to install a filter, and functions of Python's in the process that starts it."""
    assert run_without(calls, SANDBOX).split() == ["1", "2"]


@pytest.mark.parametrize("calls", ["prctl", "functions"])
def test_worker_processes_need_none_of_it(calls: str) -> None:
    """They answer, and how one ended is known."""
    answered, ended = run_without(calls, POOL).strip().splitlines()
    assert answered == f"{calls != 'functions'} 1"
    assert "exit status 3" in ended


def test_a_command_runs_where_it_cannot_be_bound_to_its_parent() -> None:
    assert run_without("prctl", CHILD).split() == ["1"]
