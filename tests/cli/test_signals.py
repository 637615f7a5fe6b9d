"""Signals on `ludus train`: which codes it leaves with, and what is saved by then."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ludus.loop.checkpoint import latest_checkpoint


def begun(run_yaml: Path, **options: int) -> subprocess.Popen[bytes]:
    """A run that never ends by itself, and has trained a step."""
    keys = ["total_train_steps=100000", "eval={before: false, after: false}", "valid_dataset.path=null"]
    command = [sys.executable, "-m", "ludus", "train", str(run_yaml), *keys]
    process = subprocess.Popen(command, cwd=run_yaml.parent, start_new_session=True, **options)
    metrics = run_yaml.parent / "runs" / "small" / "metrics.jsonl"
    while not (metrics.is_file() and metrics.stat().st_size):
        assert process.poll() is None, "it ended before a step"
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    return process


def saved_step(run_yaml: Path) -> int:
    found = latest_checkpoint(run_yaml.parent / "runs" / "small" / "checkpoints")
    return 0 if found is None else found.progress.step


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_who_is_asked_to_end_saves_first(number: signal.Signals, code: int, run_yaml: Path) -> None:
    """A person's Ctrl-C is 0; a supervisor's SIGTERM is no 0, after which it would take the run for done."""
    with begun(run_yaml, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        process.send_signal(number)
        assert process.wait(60) == code
    assert saved_step(run_yaml) >= 1


def test_a_terminal_that_closes_loses_nothing(run_yaml: Path) -> None:
    """What the run says goes nowhere from then on, and the checkpoint is written."""
    ours, theirs = pty.openpty()
    with begun(run_yaml, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 128 + signal.SIGHUP
    assert saved_step(run_yaml) >= 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_is_told_to_end_puts_away_what_it_made(number: signal.Signals, tmp_path: Path) -> None:
    """A temporary folder is removed on the way out, though a signal comes meanwhile; the code says which it was."""
    code = (
        "import os, signal, sys, tempfile\n"
        "from ludus.cli.signals import leaving_by_exception\n"
        "number = int(sys.argv[1])\n"
        "with leaving_by_exception(), tempfile.TemporaryDirectory(dir=sys.argv[2]):\n"
        "    try:\n"
        "        os.kill(os.getpid(), number)\n"
        "    finally:\n"
        "        os.kill(os.getpid(), number)\n"
    )
    command = [sys.executable, "-c", code, str(int(number)), str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == 128 + number
    assert not [*tmp_path.iterdir()]


def test_what_is_told_to_end_says_nothing_of_its_tasks() -> None:
    """The signal comes while a coroutine runs, which ends with it: there is nobody to read how deep it was."""
    code = (
        "import asyncio, os, signal\n"
        "from ludus.cli.signals import leaving_by_exception\n"
        "from ludus.processes.blocking import run_blocking\n"
        "async def end():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    for _ in range(10**6): pass\n"
        "async def work():\n"
        "    async with asyncio.TaskGroup() as group:\n"
        "        group.create_task(end())\n"
        "with leaving_by_exception():\n"
        "    run_blocking(work())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"  # as in the background of a script
    assert subprocess.run([sys.executable, "-c", deaf + code], stderr=subprocess.DEVNULL).returncode == 143
