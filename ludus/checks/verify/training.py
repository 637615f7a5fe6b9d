"""Small runs of `ludus train` in separate processes, for checks that interrupt them.

Knows: processes, run folders, model files.  Knows not: what happens inside a run, what ends it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ludus.errors import BackendError
from ludus.loop.checkpoint import checkpoints
from ludus.loop.interrupt import END_SIGNALS
from ludus.machine import Machine
from ludus.processes.end_with_parent import end_with_parent
from ludus.runs.folder import read_metrics

_NUM_ROWS = 12
_GROUPS, _MEMBERS = 2, 4
EPISODES_A_STEP = _GROUPS * _MEMBERS
HELD_S = 600.0
"""Longest wait at a gate: longer than any wait of a check, but finite, so that an agent or a loss does not hang for
ever. On a busy machine a run needs minutes to start."""
_NOTHING: Mapping[str, str] = {}
_LUDUS = (sys.executable, "-m", "ludus")


class LettersAgent:
    """Makes two requests; the reward is for many different letters in a reply."""

    async def run(self, data: Mapping[str, Any], *, base_url: str, http_client: Any) -> dict[str, float]:
        messages = [{"role": "user", "content": data["question"]}]
        rewards = {}
        for follow_up in ("And why?", ""):
            answer = (await http_client.post(base_url + "/chat/completions", json={"messages": messages})).json()
            text = answer["choices"][0]["message"]["content"] or ""
            rewards[answer["id"]] = len(set(text)) / 10.0
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": follow_up}]
        return rewards


def write_run(folder: Path, model: Path, seed: int, steps: int, trained: Mapping[str, Any]) -> None:
    """Write the rows and the configuration of the run. trained: settings of how it is trained."""
    rows = [{"question": f"What do you know about the number {number}?"} for number in range(_NUM_ROWS)]
    config: dict[str, Any] = {
        "run_root": str(folder / "runs"),
        "seed": seed,
        "model": {"path": str(model)},
        "workflow": f"{__name__}:{LettersAgent.__name__}",
        "train_dataset": {"path": str(folder / "rows.jsonl"), "batch_size": _GROUPS},
        "gconfig": {"n_samples": _MEMBERS, "max_new_tokens": 8},
        "rollout": {"max_head_offpolicyness": 0},
        "checkpoint": {"every_steps": 1},
        "total_train_steps": steps,
        **trained,
    }
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "run.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Gate:
    """Two files through which a check holds its runs."""

    folder: Path
    phase: str

    @property
    def _closed(self) -> Path:
        return self.folder / f"{self.phase}.closed"

    @property
    def reached(self) -> Path:
        """A file that exists when something waits at the gate."""
        return self.folder / f"{self.phase}.reached"

    def close(self) -> None:
        self.reached.unlink(missing_ok=True)
        self._closed.touch()

    def open(self) -> None:
        self._closed.unlink(missing_ok=True)

    def holds(self) -> bool:
        try:
            closed_at = self._closed.stat().st_mtime
        except FileNotFoundError:
            return False
        if time.time() - closed_at > HELD_S:
            return False
        self.reached.touch()
        return True


class Training:
    """`ludus train` in a separate process."""

    def __init__(self, folder: Path, name: str, *options: str, environment: Mapping[str, str] = _NOTHING) -> None:
        """environment: variables in addition to those of this process."""
        self._log = folder / f"{name}{''.join(options)}.log"
        command = end_with_parent((*_LUDUS, "train", str(folder / "run.yaml"), f"name={name}", *options))
        with self._log.open("wb") as output:
            self.popen = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**_environment(), **environment},
                preexec_fn=_hear,
            )

    def finish(self) -> None:
        try:
            self.popen.wait()
        except BaseException:  # kill the run before its folder is removed
            self.kill()
            raise
        if self.popen.returncode != 0:
            raise self.failed(f"a run of the check failed with exit code {self.popen.returncode}")

    @property
    def said(self) -> str:
        """Its output so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def failed(self, words: str) -> BackendError:
        return BackendError("\n".join([f"{words}:", *self.said.splitlines()[-12:]]))


def command_line(folder: Path, *arguments: str, is_of_check: bool = True) -> str:
    """The output of `ludus ARGUMENTS` in the folder. is_of_check: with the same environment as the check's own runs.

    Raises BackendError if it fails.
    """
    environment = _environment(is_of_check=is_of_check)
    done = subprocess.run([*_LUDUS, *arguments], capture_output=True, text=True, cwd=folder, env=environment)
    if done.returncode != 0:
        last = "\n".join(f"{done.stdout}\n{done.stderr}".splitlines()[-12:])
        raise BackendError(f"ludus {arguments[0]} failed with exit code {done.returncode}:\n{last}")
    return done.stdout


def trained_steps(run: Path) -> int:
    """The newest step in the run's metrics; 0 before the first."""
    rows = read_metrics(run).rows
    return rows[-1][0] if rows else 0


def digest(run: Path, *, after_step: int = 0) -> str:
    """Digest of all saved weights, and of the trainer's state in checkpoints after `after_step`."""
    sums = hashlib.sha256()
    files = sorted((run / "model").glob("*.safetensors"))
    saved = [each for each in checkpoints(run / "checkpoints") if each.progress.step > after_step]
    state = sorted(path for each in saved for path in each.trainer_folder.rglob("*.safetensors"))
    if not files or not state:
        raise BackendError(f"the run {run.name!r} of the check saved no weights")
    for file in [*files, *state]:
        sums.update(file.read_bytes())
    return sums.hexdigest()


def _environment(*, is_of_check: bool = True) -> dict[str, str]:
    """Environment of the runs. The package must be found from the scratch folder as it is here, and all runs of a check
    must use the same number of threads, whatever the load when they start. A run that the check did not start has its
    own number of threads in its record, which only the user may override."""
    paths = os.pathsep.join(path for path in (str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")) if path)
    threads = {"OMP_NUM_THREADS": _num_threads()} if is_of_check else {}
    return {**threads, **os.environ, "PYTHONPATH": paths}


@cache
def _num_threads() -> str:
    return str(Machine.look().threads)


def _hear() -> None:
    """Restore default signal handling in a run, as a check in the background or under nohup ignores some signals."""
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
