"""Plain transformers, `generate`: sampled tokens a second. Gets its work as a JSON file.

Prints one JSON object with a row for every number of requests, prefill included.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    work = json.loads(parser.parse_args().work.read_text())
    model = AutoModelForCausalLM.from_pretrained(work["model"], dtype=torch.bfloat16).to(DEVICE)
    torch.manual_seed(work["seed"])

    def sample(prompts: list[list[int]]) -> float:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts], device=DEVICE)
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=DEVICE)
        started_at = time.perf_counter()
        # top_k=0 switches off a default that changes the distribution
        out = model.generate(
            ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0,
            min_new_tokens=work["new_tokens"], max_new_tokens=work["new_tokens"],
        )  # fmt: skip
        out = out.cpu()  # which waits for a card
        taken_s = time.perf_counter() - started_at
        assert out.shape[1] == longest + work["new_tokens"]
        return taken_s

    rows = []
    for prompts in work["batches"]:
        sample(prompts)
        rate = len(prompts) * work["new_tokens"] / sample(prompts)
        rows.append({"requests": len(prompts), "tokens_per_s": rate})
    print(json.dumps({"rows": rows, "versions": {name: version(name) for name in ("torch", "transformers")}}))


if __name__ == "__main__":
    main()
