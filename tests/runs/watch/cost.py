"""What it costs a run to be watched: `python -m tests.runs.watch.cost RUN.yaml [PAIRS]`, from the repository's root.

The same steps are trained with nobody watching and with the page open in a real browser, in turn. Says the tokens
sampled a second of each pair, and the median ratio. Nothing is asserted: it depends on who else uses the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from ludus.checks.bench.pairs import compare
from tests.runs.browser import Browser, serving

_STEPS = 10
_SETTINGS = (f"total_train_steps={_STEPS}", "total_train_seconds=null", "eval.before=false", "eval.after=false")


def tokens_per_s(config: Path, *, watched: bool) -> float:
    """Tokens that a run samples in a second of its steps, training and publishing included."""
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        folder = Path(root, "run")
        words = ("train", str(config), "name=run", f"run_root={root}", *_SETTINGS)
        run = subprocess.Popen([sys.executable, "-m", "ludus", *words], stdout=subprocess.DEVNULL)
        while watched and not (folder / "run.db").exists():
            assert run.poll() is None, "the run failed"
            time.sleep(0.1)
        if watched:
            link = stack.enter_context(serving("watch", str(folder), "--no-open", "--port", "0"))
            page = stack.enter_context(Browser(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
            page.open(link)
            page.wait_for("Curves", timeout_s=120)
        assert run.wait() == 0, "the run failed"
        if watched:
            page.wait_until(f"document.body.innerText.match(/Step\\s+{_STEPS}\\b/)", 60)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "engine/sampled_tokens" in line]
    return sum(line["engine/sampled_tokens"] for line in steps) / sum(line["time/step_s"] for line in steps)


def main(config: Path, pairs: int) -> None:
    with_page, alone = [], []
    for number in range(pairs):
        for watched in (True, False) if number % 2 else (False, True):
            (with_page if watched else alone).append(tokens_per_s(config, watched=watched))
        sys.stdout.write(f"tokens/s with the page open {with_page[-1]:.1f}, without {alone[-1]:.1f}\n")
        sys.stdout.flush()
    sys.stdout.write(json.dumps(compare(with_page, alone)) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5)
