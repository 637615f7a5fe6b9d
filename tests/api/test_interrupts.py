"""Ctrl-C on a real training process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ludus.loop.checkpoint import latest_checkpoint

ROOT = Path(__file__).parent.parent.parent
SCRIPT = """
import asyncio, sys
import openai
import ludus

async def agent(data, base_url, api_key, http_client):
    client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
    messages = [{"role": "user", "content": "Guess."}]
    reply = await client.chat.completions.create(model="default", messages=messages, max_tokens=4)
    if data["hangs"] and counter.steps >= 1:
        print("hanging", flush=True)
        await asyncio.Event().wait()
    return len(reply.choices[0].message.content or "")

class Counter:
    steps = 0
    def on_start(self, total_steps, total_seconds): ...
    def on_step(self, step, metrics):
        self.steps = step
        print("step", step, flush=True)
    def on_eval(self, step, metrics): ...
    def on_end(self, summary):
        print("end", summary.stopped_by, flush=True)

counter = Counter()
config = ludus.Config(
    name="run", run_root=sys.argv[2], model={"path": sys.argv[1], "dtype": "float32"}, engine={"kv_bytes": 2**22},
    gconfig={"n_samples": 2}, train_dataset={"batch_size": 1}, total_train_steps=100000,
)
ludus.Trainer(config, [{"hangs": sys.argv[3] == "hang"}]).train(agent, observer=counter)
"""


def start(model: Path, root: Path, mode: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(model), str(root), mode]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def wait_for_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    for found in process.stdout:
        if found.strip() == line:
            return
    pytest.fail(f"the process ended before it said {line!r}")


@pytest.mark.parametrize(("mode", "line"), [("play", "step 2"), ("hang", "hanging")])
def test_one_interrupt_saves_and_leaves(tiny_model_folder: Path, tmp_path: Path, mode: str, line: str) -> None:
    """In the middle of a step, or while agents hang, Ctrl-C leaves a checkpoint of the last step and exit code 0."""
    with start(tiny_model_folder, tmp_path, mode) as process:
        wait_for_line(process, line)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "end interrupt" in rest
    steps = [int(word.split()[1]) for word in rest.splitlines() if word.startswith("step")]
    found = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert found is not None and found.progress.step == max([*steps, 2 if mode == "play" else 1])
