"""Plain transformers in bf16, trained as one would write it down. Gets its work as a JSON file.

Prints one JSON object: seconds of each step, tokens a second of the median one, the peak of memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

WARM_UP_STEPS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    work = json.loads(parser.parse_args().work.read_text())
    model = AutoModelForCausalLM.from_pretrained(work["model"], dtype=torch.bfloat16).to(DEVICE)
    if work["lora_rank"] is not None:
        model = with_adapters(model, work["lora_rank"])
    if work["checkpointing"]:
        model.gradient_checkpointing_enable()
        model.train()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-6)
    ids = torch.tensor(work["rows"], device=DEVICE)
    first = work["shared_tokens"] or 1

    def step() -> float:
        started_at = time.perf_counter()
        logits = model(input_ids=ids, use_cache=False).logits[:, first - 1 : -1].float()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, first:].flatten()).backward()
        if work["kind"] == "dense":
            optimizer.step()
            optimizer.zero_grad()
            finish()
            return time.perf_counter() - started_at
        finish()
        taken_s = time.perf_counter() - started_at
        optimizer.zero_grad()
        return taken_s

    taken_s = [step() for _ in range(WARM_UP_STEPS + work["steps"])][WARM_UP_STEPS:]
    bytes_per_unit = 1 if sys.platform == "darwin" else 1024
    figures = {
        "tokens_per_s": ids.numel() / statistics.median(taken_s),
        "steps_s": taken_s,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * bytes_per_unit / 2**20,
        "versions": {name: version(name) for name in ("torch", "transformers")},
    }
    print(json.dumps(figures))


def finish() -> None:
    """A processor has finished when a call returns, a card has not."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def with_adapters(model: torch.nn.Module, rank: int) -> torch.nn.Module:
    from peft import LoraConfig, get_peft_model  # needed for --lora alone

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, task_type="CAUSAL_LM"))


if __name__ == "__main__":
    main()
