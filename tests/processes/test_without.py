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


@pytest.mark.parametrize("calls", ["landlock", "seccomp"])
def test_calls_that_the_sandbox_does_not_need(calls: str) -> None:
    """Landlock, and the newer way to install a filter."""
    assert run_without(calls, SANDBOX).split() == ["1", "2"]


def test_a_command_runs_where_it_cannot_be_bound_to_its_parent() -> None:
    assert run_without("prctl", CHILD).split() == ["1"]
