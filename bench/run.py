"""Ludus beside plain transformers on the same model and the same work, as ratios taken in turn within one run.

    python bench/run.py            a table
    python bench/run.py --json     and one object as the last line

This machine may change its speed from minute to minute, so only the ratios count: ours, theirs, ours, theirs.
"""

import argparse
import asyncio
import json
import random
import statistics
import time

import torch
from transformers import AutoModelForCausalLM

from ludus.algo.pack import Batch, TrainSequence, pack
from ludus.api.local import open_local
from ludus.config import Config
from ludus.types import Call, Sampling

PAIRS = 5
REQUESTS, PROMPT_TOKENS, NEW_TOKENS = 64, 48, 32
GROUP, SHARED_TOKENS, OWN_TOKENS = 8, 200, 32


async def sample_ours(local, prompts, seed):
    calls = [
        Call(f"{seed}-{i}", "bench", tuple(prompt), Sampling(max_new_tokens=NEW_TOKENS, seed=seed * 1000 + i))
        for i, prompt in enumerate(prompts)
    ]
    started_at = time.perf_counter()
    answers = await asyncio.gather(*(local.engine.generate(call) for call in calls))
    return sum(len(answer.token_ids) for answer in answers) / (time.perf_counter() - started_at)


def sample_theirs(model, prompts):
    ids = torch.tensor(prompts)
    started_at = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=True, top_k=0, pad_token_id=2
        )
    return (out.shape[1] - ids.shape[1]) * len(prompts) / (time.perf_counter() - started_at)


def group_of_sequences(rng, vocab_size):
    shared = [rng.randrange(100, vocab_size) for _ in range(SHARED_TOKENS)]
    rows = [shared + [rng.randrange(100, vocab_size) for _ in range(OWN_TOKENS)] for _ in range(GROUP)]
    targets = tuple(range(SHARED_TOKENS, SHARED_TOKENS + OWN_TOKENS))
    sequences = [
        TrainSequence(
            token_ids=tuple(row),
            target_idx=targets,
            advantages=(1.0,) * OWN_TOKENS,
            weights=(1.0 / (GROUP * OWN_TOKENS),) * OWN_TOKENS,
            logprobs=(-10.0,) * OWN_TOKENS,
            versions=(0,) * OWN_TOKENS,
            temperatures=(1.0,) * OWN_TOKENS,
        )
        for row in rows
    ]
    return rows, sequences


def train_ours(trainer, sequences):
    started_at = time.perf_counter()
    trainer.forward_backward(Batch(rows=pack(sequences, row_tokens=512), version=0))
    taken_s = time.perf_counter() - started_at
    for gradient in trainer.optimizer.gradients().values():
        gradient.zero_()
    return GROUP * (SHARED_TOKENS + OWN_TOKENS) / taken_s


def train_theirs(model, rows):
    ids = torch.tensor(rows)
    started_at = time.perf_counter()
    logits = model(input_ids=ids).logits[:, SHARED_TOKENS - 1 : -1].float()
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, SHARED_TOKENS:].flatten()).backward()
    taken_s = time.perf_counter() - started_at
    model.zero_grad()
    return ids.numel() / taken_s


def summary(name, ours, theirs):
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return {
        "bench": name,
        "ours": round(statistics.median(ours), 1),
        "peer": round(statistics.median(theirs), 1),
        "ratio": round(statistics.median(ratios), 2),
        "ratio_min": round(min(ratios), 2),
        "ratio_max": round(max(ratios), 2),
    }


async def measure():
    config = Config()
    async with open_local(config) as local:
        plain = AutoModelForCausalLM.from_pretrained(local.model.folder, dtype=torch.bfloat16)
        plain.generation_config.eos_token_id = None  # every answer has its full length
        rng = random.Random(0)
        vocab_size = local.model.config.vocab_size
        ours, theirs = [], []
        for pair in range(PAIRS + 1):  # the first pair warms up
            prompts = [[rng.randrange(100, vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(REQUESTS)]
            ours.append(await sample_ours(local, prompts, pair))
            theirs.append(sample_theirs(plain, prompts))
        yield summary(f"sample {REQUESTS} x {NEW_TOKENS} tokens", ours[1:], theirs[1:])
        trainer = local.trainer(config)
        ours, theirs = [], []
        for _ in range(PAIRS + 1):
            rows, sequences = group_of_sequences(rng, vocab_size)
            ours.append(train_ours(trainer, sequences))
            theirs.append(train_theirs(plain, rows))
        yield summary(f"train a group of {GROUP}: {SHARED_TOKENS} shared + {OWN_TOKENS} own", ours[1:], theirs[1:])


async def main(as_json):
    print(f"tokens/s, medians of {PAIRS} pairs; torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'':<44}{'ludus':>8}{'plain':>8}{'ratio':>8}   min  max")
    rows = []
    async for row in measure():
        rows.append(row)
        spread = f"{row['ratio_min']} {row['ratio_max']}"
        print(f"{row['bench']:<44}{row['ours']:>8}{row['peer']:>8}{row['ratio']:>7}x   {spread}")
    if as_json:
        print(json.dumps(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    asyncio.run(main(parser.parse_args().json))
