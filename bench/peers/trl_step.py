"""TRL's GRPOTrainer, on a card where there is one: full fine-tune, AdamW, no KL. Gets two arguments: a precision, and
its work as a JSON file.

Prints one JSON object: for every step its number, seconds (sampling and training) and the mean reward of its answers.
Everything that the work does not say is TRL's default, but that no activation is recomputed, which saves it time.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

PRECISIONS: dict[str, dict[str, Any]] = {
    "autocast": {},
    "fp32": {"bf16": False},
    "bf16": {"model_init_kwargs": {"dtype": "bfloat16"}},
}
"""Settings of TRL. autocast: none; TRL loads weights as fp32 and computes with them in bf16. fp32: weights and maths.
bf16: the weights too, without masters, so that steps far below a weight are lost to rounding."""


def reward(completions: list[list[dict[str, str]]], answer: list[str], **_: Any) -> list[float]:
    return [sum_reward(completion[0]["content"], each) for completion, each in zip(completions, answer, strict=True)]


def sum_reward(reply: str, answer: str) -> float:
    """1 if the last number of the reply is the answer, else 0."""
    numbers = re.findall(r"-?\d+", reply)
    return float(bool(numbers) and numbers[-1] == answer)


class Steps(TrainerCallback):
    """Keeps a line when a step's figures are known, and shows it on stderr."""

    def __init__(self) -> None:
        self.lines: list[dict[str, float]] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.started_at = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.taken_s = time.perf_counter() - self.started_at

    def on_log(self, _args: Any, state: Any, _control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if logs and "reward" in logs:
            line = {"step": state.global_step, "seconds": round(self.taken_s, 3), "reward": float(logs["reward"])}
            self.lines.append(line | {"num_tokens": float(logs["num_tokens"])})
            print(json.dumps(self.lines[-1]), file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("precision", choices=PRECISIONS)
    parser.add_argument("work", type=Path)
    arguments = parser.parse_args()
    work = json.loads(arguments.work.read_text())
    rows = [
        {"prompt": [{"role": "user", "content": question}], "answer": answer}
        for question, answer in zip(work["questions"], work["answers"], strict=True)
    ]
    steps = Steps()
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=work["groups"] * work["samples"],
            num_generations=work["samples"], max_completion_length=work["new_tokens"], max_steps=work["steps"],
            learning_rate=work["lr"], seed=work["seed"], logging_steps=1, report_to="none",
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no", gradient_checkpointing=False, temperature=1.0, beta=0.0, disable_tqdm=True,
            **PRECISIONS[arguments.precision],
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=work["model"], reward_funcs=reward, args=config, train_dataset=Dataset.from_list(rows),
            callbacks=[steps],
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    bytes_per_unit = 1 if sys.platform == "darwin" else 1024
    figures = {
        "steps": steps.lines,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * bytes_per_unit / 2**20,
        "versions": {name: version(name) for name in ("trl", "torch", "transformers")},
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
