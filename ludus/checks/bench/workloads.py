"""The work that both sides of a comparison do, as JSON-able values.

Knows: prompts, sizes, seeds.  Knows not: tensors, processes, the two sides.
Invariant: everything that must be equal on both sides (tokens, lengths, seeds) is defined here, once.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ludus.compat.config import Config, load_config
from ludus.text.chat import ChatText
from ludus.text.tokenizer import Tokenizer
from ludus.types import Message

Encode = Callable[[str], tuple[int, ...]]
"""Returns the token ids of the prompt for a user message."""

KV_BYTES = 2 * 2**30
"""Memory for keys and values on each side; three times what 256 requests of the 135M model need."""
LORA_RANK = 16
_NUM_TURNS = 8
_REPLY = "Blue paint."
TrainKind = Literal["dense", "group"]
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Base of the benches' work: a model, and settings for Ludus's side."""

    model: str
    """Folder."""
    overrides: tuple[str, ...] = ()
    """KEY=VALUE that override the bench's own settings of Ludus."""
    seed: int = 0

    def config(self, *chosen: str) -> Config:
        """The configuration of our side, with the bench's own settings. Raises ConfigError for an invalid override."""
        return load_config(None, (f"model.path={json.dumps(self.model)}", *chosen, *self.overrides))


@dataclass(frozen=True, slots=True)
class SampleWork(Workload):
    """Sample a fixed number of tokens for many concurrent requests, for several numbers of requests in turn."""

    batches: tuple[tuple[Tokens, ...], ...] = ()
    """Token ids of every prompt, for each number of requests."""
    new_tokens: int = 64
    kv_bytes: int = KV_BYTES


@dataclass(frozen=True, slots=True)
class TrainWork(Workload):
    """Train on the same token ids step after step.

    dense: all tokens of every row are trained, with an optimizer step. group: the rows share the first `shared_tokens`,
    only the rest is trained, and there is no optimizer step.
    """

    kind: TrainKind = "dense"
    rows: tuple[Tokens, ...] = ()
    shared_tokens: int = 0
    steps: int = 3
    lora_rank: int | None = None
    """None: all weights are trained."""
    checkpointing: bool = False


@dataclass(frozen=True, slots=True)
class QuotaWork:
    """Sample, then train, with the threads that are chosen."""

    sampling: SampleWork
    training: TrainWork


@dataclass(frozen=True, slots=True)
class MemoryWork(Workload):
    """Train with different sizes in every step, and measure memory."""

    vocab_size: int = 0
    steps: int = 500


@dataclass(frozen=True, slots=True)
class StepWork(Workload):
    """GRPO on sums: groups of answers to `questions`, rewarded if their last number is the answer."""

    questions: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    groups: int = 8
    samples: int = 8
    new_tokens: int = 32
    lr: float = 1e-5
    steps: int = 3


@dataclass(frozen=True, slots=True)
class PublishWork(Workload):
    """Publish new weights while requests are being sampled."""

    prompts: tuple[Tokens, ...] = ()
    new_tokens: int = 64


@dataclass(frozen=True, slots=True)
class RowWork(Workload):
    """Train a long row, alone and while an answer is sampled and other calls are aborted."""

    row: Tokens = ()
    prompt: Tokens = ()
    rows: int = 2
    """How often it is trained each time."""
    every_s: float = 0.5
    """Between one abort and the next call to be aborted."""
    gives_way: bool = True
    """Whether the trainer gives way within the row, and aborts act meanwhile."""


@dataclass(frozen=True, slots=True)
class TraceWork(Workload):
    """Play concurrent episodes of three turns, with or without a tracker that is sent them."""

    questions: tuple[str, ...] = ()
    new_tokens: int = 32
    """Tokens of each answer."""
    episodes: int = 256
    at_once: int = 32
    tracker: str | None = "mlflow"
    """None: there is none."""


@dataclass(frozen=True, slots=True)
class ReplicasWork:
    """Play groups of four episodes of two turns on engines that sample `slots` calls at once, a token every `token_s`,
    with the tokenizer of `model`."""

    model: str
    """Folder."""
    replicas: int
    slots: int = 8
    token_s: float = 0.05
    new_tokens: int = 16
    groups: int = 64
    at_once: int = 64
    """Number of concurrent episodes: more than all slots, so that no slot is idle."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LearnWork:
    """Train the run of a configuration."""

    run: str
    """File of the configuration."""
    overrides: tuple[str, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class OverlapWork:
    """Train the run of a configuration with tools that take a while before every call of the model."""

    run: str
    """File of the configuration."""
    overrides: tuple[str, ...]
    ahead: int
    """`rollout.max_head_offpolicyness`."""
    least_s: float
    """Shortest time of a tool; times are uniform between it and `most_s`."""
    most_s: float
    tools: int
    """Number of tools before each call, one after the other."""
    seed: int


@dataclass(frozen=True, slots=True)
class TurnsWork:
    """A session of `long` tool-calling turns compared with one of `short`, with the tokenizer of `model`."""

    model: str
    short: int
    long: int
    pairs: int


@dataclass(frozen=True, slots=True)
class Phase:
    """A number of connections, each with one request in flight, for a duration."""

    connections: int
    seconds: float
    stream: bool = False


@dataclass(frozen=True, slots=True)
class GatewayWork:
    """Sessions of a few chat turns, with the tokenizer and template of `model`; each turn is answered with `reply`."""

    model: str
    """Folder."""
    reply: str
    bodies: tuple[Mapping[str, Any], ...]
    """Requests of a session, in order, each with the whole history."""
    phases: tuple[Phase, ...]
    """Warm-up, single requests, single streams, many concurrent requests."""
    headers: Mapping[str, str]
    client: tuple[str, ...]
    """Command of the client. Its argument is a job: this work, a host, a port, and a path for each session."""
    upstream: tuple[str, ...]
    """Command of a model server for gateways without an engine. Its argument is `reply`; it prints its port."""


def sample_batches(encode: Encode, requests: tuple[int, ...]) -> tuple[tuple[Tokens, ...], ...]:
    """For each number of requests, prompts for short stories, all of them different."""
    starts = [sum(requests[:idx]) for idx in range(len(requests))]
    return tuple(
        tuple(encode(story(start + idx)) for idx in range(num)) for start, num in zip(starts, requests, strict=True)
    )


def train_rows(
    kind: TrainKind, vocab_size: int, *, dense: tuple[int, int] = (8, 256)
) -> tuple[tuple[Tokens, ...], int]:
    """Rows, and the number of tokens they share. dense: as many rows, of as many tokens each, as the argument says;
    group: 8 rows of 200 shared and 32 own tokens."""
    rng = random.Random(0)
    num_rows, num_shared, num_own = {"dense": (dense[0], 0, dense[1]), "group": (8, 200, 32)}[kind]
    shared = random_tokens(rng, num_shared, vocab_size)
    return tuple(shared + random_tokens(rng, num_own, vocab_size) for _ in range(num_rows)), num_shared


def long_row(num_tokens: int, vocab_size: int) -> Tokens:
    """One sequence of random tokens."""
    return random_tokens(random.Random(0), num_tokens, vocab_size)


def sums(seed: int, num: int = 400) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Questions about sums of two numbers from 1 to 50, and their answers."""
    rng = random.Random(seed)
    pairs = [(rng.randint(1, 50), rng.randint(1, 50)) for _ in range(num)]
    return tuple(f"What is {a}+{b}? Answer with just the number." for a, b in pairs), tuple(
        str(a + b) for a, b in pairs
    )


def gateway_work(folder: Path, *, connections: int, seconds: float) -> GatewayWork:
    """Chats of `_NUM_TURNS` turns about the shelves of a store, with requests like those of an SDK."""
    messages: list[Mapping[str, Any]] = [{"role": "system", "content": "You know what lies on the shelves of a shop."}]
    bodies = []
    for idx in range(_NUM_TURNS):
        messages.append({"role": "user", "content": f"What lies on shelf {idx}?"})
        bodies.append({"model": "default", "messages": [*messages], "temperature": 1.0, "max_tokens": 64})
        messages.append({"role": "assistant", "content": _REPLY})
    alone = seconds / 2
    here = Path(__file__).parent
    return GatewayWork(
        str(folder),
        _REPLY,
        tuple(bodies),
        (Phase(connections, alone), Phase(1, alone), Phase(1, alone, stream=True), Phase(connections, seconds)),
        {"host": "localhost", "content-type": "application/json", "authorization": "Bearer ludus"},
        (sys.executable, str(here / "load.py")),
        (sys.executable, str(here / "upstream.py")),
    )


def chat_encoder(folder: Path) -> Encode:
    """An encoder of single user messages, with the chat template of the model in `folder`."""
    text = ChatText.load(folder)
    return lambda question: text.tokenizer.encode(text.template.render((Message("user", question),)))


def vocab_size(folder: Path) -> int:
    """Size of the vocabulary of the model in `folder`."""
    return Tokenizer.load(folder).vocab_size


def story(number: int) -> str:
    return f"Tell me a short story about number {number} and its friends."


def random_tokens(rng: random.Random, num: int, vocab_size: int) -> Tokens:
    """Random ids, excluding the first few, which are special tokens in common vocabularies."""
    return tuple(rng.randrange(vocab_size // 100, vocab_size) for _ in range(num))
