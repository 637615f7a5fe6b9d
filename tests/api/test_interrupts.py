"""Ctrl-C and its like on a real training process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ludus.loop.checkpoint import latest_checkpoint
from ludus.loop.interrupt import END_SIGNALS

ROOT = Path(__file__).parent.parent.parent
SCRIPT = """
import asyncio, sys
import ludus
import ludus.config

async def agent(data, base_url, api_key, http_client):
    body = {"messages": [{"role": "user", "content": "Guess."}], "max_tokens": 4}
    reply = (await http_client.post(base_url + "/chat/completions", json=body)).json()
    if data["hangs"] and counter.steps >= 1:
        print("hanging", flush=True)
        await asyncio.Event().wait()
    return len(reply["choices"][0]["message"]["content"] or "")

class Counter(ludus.Observer):
    steps = 0
    def on_step(self, step, metrics):
        self.steps = step
        print("step", step, flush=True)
    def on_end(self, summary):
        print("end", summary.stopped_by, flush=True)

for mode in ("play", "hang"):
    counter = Counter()
    config = ludus.config.Config(
        name=mode, run_root=sys.argv[2], model={"path": sys.argv[1], "dtype": "float32"}, engine={"kv_bytes": 2**22},
        gconfig={"n_samples": 2}, train_dataset={"batch_size": 1}, total_train_steps=100000,
    )
    rows = [{"hangs": mode == "hang"}]
    ludus.Trainer(config, rows).train(agent, observer=counter)
"""


def start(model: Path, root: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(model), str(root)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def read_until(process: subprocess.Popen[str], line: str) -> list[str]:
    """What it says, up to `line`."""
    assert process.stdout is not None
    said: list[str] = []
    for found in process.stdout:
        said.append(found.strip())
        if said[-1] == line:
            return said
    pytest.fail(f"the process ended before it said {line!r}")


@pytest.mark.parametrize("number", END_SIGNALS)
def test_one_signal_saves_and_leaves(number: signal.Signals, tiny_model_folder: Path, tmp_path: Path) -> None:
    """In the middle of a step, or while agents hang, it leaves a checkpoint of the last step; the program goes on
    behind the training, and ends with exit code 0."""
    with start(tiny_model_folder, tmp_path) as process:
        for mode, line in (("play", "step 2"), ("hang", "hanging")):
            said = read_until(process, line)
            process.send_signal(number)
            said += read_until(process, "end interrupt")
            found = latest_checkpoint(tmp_path / mode / "checkpoints")
            steps = [int(word.split()[1]) for word in said if word.startswith("step")]
            assert found is not None and found.progress.step == max(steps)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
