"""What it costs a run to be watched: `python -m tests.runs.watch.cost RUN.yaml [PAIRS]`, from the repository's root.

One run, whose weights stay as they are so that its steps are alike. For a few steps the page is open in a real browser,
for as many watcher and browser are stopped, in turn. Says the tokens sampled a second of each pair, and the median
ratio with its range. Nothing is asserted: it depends on who else uses the machine.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ludus.checks.bench.pairs import compare
from tests.runs.browser import Browser, serving

_STEPS = 4
"""Of each side of a pair; the first ones of the run, while it warms up, count for none."""
_ALIKE = ("total_train_seconds=null", "eval.before=false", "eval.after=false", "trainer.optimizer.lr=1e-12")


def _tree(process: int) -> list[int]:
    """A process and all that it started."""
    own = [int(each) for file in Path(f"/proc/{process}/task").glob("*/children") for each in file.read_text().split()]
    return [process, *(each for child in own for each in _tree(child))]


def _lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "metrics.jsonl").read_text() if (folder / "metrics.jsonl").exists() else ""
    return [line for line in map(json.loads, text.splitlines()) if "engine/sampled_tokens" in line]


def _rate(steps: Sequence[dict[str, Any]]) -> float:
    """Tokens sampled in a second of these steps, training and publishing included."""
    return sum(step["engine/sampled_tokens"] for step in steps) / sum(step["time/step_s"] for step in steps)


def _watch(folder: Path, run: subprocess.Popen[bytes], pairs: int) -> None:
    """Opens the page, and stops all that belongs to it every other time."""
    with (
        tempfile.TemporaryDirectory() as own,
        serving("watch", str(folder), "--no-open", "--port", "0") as link,
        Browser(Path(own)) as page,
    ):
        page.open(link)
        page.wait_for("Curves", timeout_s=120)
        watching = [each for each in _tree(os.getpid())[1:] if each not in _tree(run.pid)]
        for side in range(1, 2 * pairs + 2):
            while len(_lines(folder)) < side * _STEPS:
                assert run.poll() is None, "the run failed"
                time.sleep(0.02)
            for process in watching:
                os.kill(process, signal.SIGCONT if side % 2 else signal.SIGSTOP)
        for process in watching:
            os.kill(process, signal.SIGCONT)
        page.wait_until(f"document.body.innerText.match(/Step\\s+{side * _STEPS}\\b/)", 60)


def main(config: Path, pairs: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "run")
        words = ("train", str(config), "name=run", f"run_root={root}", *_ALIKE)
        command = [sys.executable, "-m", "ludus", *words, f"total_train_steps={(2 * pairs + 1) * _STEPS}"]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while not (folder / "run.db").exists():
            assert run.poll() is None, "the run failed"
            time.sleep(0.1)
        _watch(folder, run, pairs)
        assert run.wait() == 0, "the run failed"
        steps = _lines(folder)
        rates = [_rate(steps[first : first + _STEPS]) for first in range(_STEPS, len(steps), _STEPS)]
    with_page, alone = rates[::2], rates[1::2]
    ratios = [watched / alone_too for watched, alone_too in zip(with_page, alone, strict=True)]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5
    sys.stdout.write(f"ratios {' '.join(f'{each:.3f}' for each in ratios)}; standard error of the mean {error:.4f}\n")
    sys.stdout.write(json.dumps(compare(with_page, alone)) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 12)
