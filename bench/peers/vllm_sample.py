"""vLLM on the CPU: sampled tokens a second. Runs in the peers' environment; gets its work as a JSON file.

Prints one JSON object with a row for every number of requests: prefill included, compilation excluded.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    work = json.loads(parser.parse_args().work.read_text())
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(work["kv_bytes"] // 2**30))

    from vllm import LLM, SamplingParams  # reads the environment on import

    llm = LLM(work["model"], dtype="bfloat16", max_model_len=2048, seed=work["seed"])
    # logprobs=0: of the sampled token alone, as the other side returns it
    params = SamplingParams(temperature=1.0, max_tokens=work["new_tokens"], ignore_eos=True, logprobs=0)

    def sample(prompts: list[list[int]]) -> float:
        asked: list[Any] = [{"prompt_token_ids": ids} for ids in prompts]
        started_at = time.perf_counter()
        answers = llm.generate(asked, params, use_tqdm=False)
        taken_s = time.perf_counter() - started_at
        assert all(len(answer.outputs[0].token_ids) == work["new_tokens"] for answer in answers)
        return taken_s

    rows = []
    for prompts in work["batches"]:
        sample(prompts)
        llm.reset_prefix_cache()
        rate = len(prompts) * work["new_tokens"] / sample(prompts)
        rows.append({"requests": len(prompts), "tokens_per_s": rate})
    print(
        json.dumps({"rows": rows, "versions": {name: version(name) for name in ("vllm-cpu", "torch", "transformers")}})
    )


if __name__ == "__main__":
    main()
