"""Continuous batching of transformers: sampled tokens a second. Gets its work as a JSON file.

Prints one JSON object with a row for every number of requests: prefill included, CUDA graphs captured before.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version
from math import ceil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PAGE_TOKENS = 256  # the default, under another name in each version
SPARE_PAGES = 2
WAIT_S = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    work = json.loads(parser.parse_args().work.read_text())
    # sdpa attends to pages on every device; on a card transformers takes flash attention instead where it is installed
    model = AutoModelForCausalLM.from_pretrained(work["model"], dtype=torch.bfloat16, attn_implementation="sdpa")
    model = model.to(DEVICE)
    generation, batching = settings(work)
    with model.continuous_batching_context_manager(generation, continuous_batching_config=batching) as manager:
        rows = []
        for prompts in work["batches"]:
            sample(manager, prompts, work["new_tokens"])
            rate = len(prompts) * work["new_tokens"] / sample(manager, prompts, work["new_tokens"])
            rows.append({"requests": len(prompts), "tokens_per_s": rate})
    print(json.dumps({"rows": rows, "versions": {name: version(name) for name in ("torch", "transformers")}}))


def settings(work: dict[str, Any]) -> tuple[GenerationConfig, ContinuousBatchingConfig]:
    """Temperature 1 with logprobs, no token that ends an answer, and pages for all requests at once."""
    most = max(map(len, work["batches"]))
    longest = max(len(prompt) for prompts in work["batches"] for prompt in prompts) + work["new_tokens"]
    # top_k=0 switches off a default that changes the distribution; -1 is no token
    generation = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=-1, pad_token_id=0,
        max_new_tokens=work["new_tokens"],
    )  # fmt: skip
    # The warm-up asks with the same prompts, so its pages are not shared. Nothing is lost: the prompts of one batch
    # are all different, and only whole pages, longer than these prompts, can be shared.
    batching = ContinuousBatchingConfig(
        num_blocks=most * ceil(longest / PAGE_TOKENS) + SPARE_PAGES, allow_block_sharing=False,
        max_requests_per_batch=most, return_logprobs=True, seed=work["seed"],
    )  # fmt: skip
    return generation, batching


def sample(manager: Any, prompts: list[list[int]], new_tokens: int) -> float:
    """Seconds from the first request to the last token."""
    started_at = time.perf_counter()
    manager.add_requests(prompts, max_new_tokens=new_tokens)
    answers = []
    while len(answers) < len(prompts):
        answer = manager.get_result(timeout=WAIT_S)
        assert answer is not None or manager.is_running(), "the manager stopped; its log above says why"
        if answer is not None and answer.is_finished():
            answers.append(answer)
    taken_s = time.perf_counter() - started_at
    for answer in answers:
        assert answer.error is None, answer.error
        assert len(answer.generated_tokens) == len(answer.logprobs) == new_tokens
    return taken_s


if __name__ == "__main__":
    main()
