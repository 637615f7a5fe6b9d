"""The work that both sides of a comparison do, as plain values that fit into a JSON file.

Knows: prompts, sizes, seeds.  Knows not: models, processes, who does the work.
Invariant: everything that may differ between two sides (tokens, lengths, seeds) is written here, once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ludus.text.chat import ChatText
from ludus.types import Message

Encode = Callable[[str], tuple[int, ...]]
"""Token ids of the prompt that asks the model this."""

KV_BYTES = 2 * 2**30
"""Room for keys and values on every side; it holds 256 requests of the 135M model three times."""
TrainKind = Literal["dense", "group"]


@dataclass(frozen=True, slots=True)
class SampleWork:
    """Sample a fixed number of tokens for many requests at once, for one number of requests after the other."""

    model: str
    """Folder."""
    batches: tuple[tuple[tuple[int, ...], ...], ...]
    """Per number of requests the token ids of every prompt."""
    new_tokens: int
    seed: int = 0
    kv_bytes: int = KV_BYTES
    profile: bool = False


@dataclass(frozen=True, slots=True)
class TrainWork:
    """Train on the same token ids step after step.

    dense: all tokens of every row are trained, and the optimizer moves the weights. group: the rows share the first
    `shared_tokens`, only what follows is trained, and the optimizer is left out.
    """

    model: str
    kind: TrainKind
    rows: tuple[tuple[int, ...], ...]
    shared_tokens: int
    steps: int
    lora_rank: int | None = None
    """None: all weights are trained."""
    checkpointing: bool = False
    profile: bool = False


@dataclass(frozen=True, slots=True)
class StepWork:
    """GRPO on sums: groups of answers to `questions`, rewarded if their last number is the answer."""

    model: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    groups: int
    samples: int
    new_tokens: int
    lr: float
    steps: int
    seed: int = 0
    profile: bool = False


@dataclass(frozen=True, slots=True)
class PublishWork:
    """Publish new weights while requests are being sampled."""

    model: str
    prompts: tuple[tuple[int, ...], ...]
    new_tokens: int
    seed: int = 0


def sample_work(model: str, encode: Encode, *, requests: tuple[int, ...], new_tokens: int, profile: bool) -> SampleWork:
    """Short stories, each prompt once in all the work."""
    batches, number = [], 0
    for num in requests:
        batches.append(tuple(encode(story(number + idx)) for idx in range(num)))
        number += num
    return SampleWork(model, tuple(batches), new_tokens, profile=profile)


def train_work(
    model: str, *, vocab_size: int, kind: TrainKind, steps: int, lora_rank: int | None, checkpointing: bool, profile: bool
) -> TrainWork:
    """dense: 8 rows of 256 tokens; group: 8 rows of 200 shared tokens and 32 of their own."""
    rng = random.Random(0)
    shared_tokens, own_tokens = (0, 256) if kind == "dense" else (200, 32)
    shared = random_tokens(rng, shared_tokens, vocab_size)
    rows = tuple(shared + random_tokens(rng, own_tokens, vocab_size) for _ in range(8))
    return TrainWork(model, kind, rows, shared_tokens, steps, lora_rank, checkpointing, profile)


def step_work(model: str, *, steps: int, seed: int = 0, profile: bool = False) -> StepWork:
    """8 sums a step, 8 answers of at most 32 tokens each."""
    rng = random.Random(seed)
    pairs = [(rng.randint(1, 50), rng.randint(1, 50)) for _ in range(400)]
    return StepWork(
        model,
        questions=tuple(f"What is {a}+{b}? Answer with just the number." for a, b in pairs),
        answers=tuple(str(a + b) for a, b in pairs),
        groups=8,
        samples=8,
        new_tokens=32,
        lr=1e-5,
        steps=steps,
        seed=seed,
        profile=profile,
    )


def publish_work(model: str, encode: Encode, *, requests: int, new_tokens: int) -> PublishWork:
    return PublishWork(model, tuple(encode(story(idx)) for idx in range(requests)), new_tokens)


def chat_encoder(folder: Path) -> Encode:
    """The prompt of one user message, as the chat template of the model in `folder` writes it."""
    text = ChatText.load(folder)
    return lambda question: text.tokenizer.encode(text.template.render((Message("user", question),)))


def story(number: int) -> str:
    return f"Tell me a short story about number {number} and its friends."


def random_tokens(rng: random.Random, num: int, vocab_size: int) -> tuple[int, ...]:
    """Ids without the first few, which are special tokens in common vocabularies."""
    return tuple(rng.randrange(vocab_size // 100, vocab_size) for _ in range(num))
