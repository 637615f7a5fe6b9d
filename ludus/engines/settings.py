"""Which engine samples, how many replicas it has, and how new weights reach it.

Knows: plain values.  Knows not: which kinds there are, how any engine is started or reached.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from ludus.settings import Choice, Idle, Settings

WeightRoute = Literal["auto", "lora", "shared_memory", "disk", "stream", "nccl", "ipc"]


class EngineSettings(Choice):
    """What every kind of engine has. The kinds are told apart by `kind`; `engines/table.py` names them."""

    implementation: ClassVar[str]
    """Import string of the `LocalKind` or the `ServerKind` that these settings are for."""
    replicas: int = Field(default=1, ge=1)
    """Engines over the same weights, behind a router; each has its own memory."""
    placement: Literal["split", "shared"] = "split"
    """shared: one vLLM on the trainer's card, of which each has its turn: it sleeps while the trainer computes. split:
    nobody waits for the other."""

    @property
    def num_started(self) -> int:
        """Number of processes that Ludus starts for it."""
        return 0

    @property
    def cards_each(self) -> int:
        """GPUs per process, where there are any."""
        return 1


class BatchSettings(Settings):
    """Memory and step size of an engine."""

    kv_bytes: int = Field(default=512 * 2**20, gt=0)
    """Memory for keys and values; 512 MiB hold 23,296 tokens of a 135M model in bf16."""
    max_batch_tokens: int = Field(default=2048, gt=0)
    """Maximum tokens per step; longer prompts are computed in chunks over several steps."""
    max_running: int = Field(default=256, gt=0)
    """Maximum sequences per step; the others wait."""
    keep_kv_on_publish: bool = True
    """False: sequences in progress recompute their keys and values when new weights are published."""


class ServerSettings(EngineSettings):
    """Engines in processes of their own."""

    acts_with_urls: ClassVar[frozenset[str]] = frozenset({"kind", "urls", "api_key", "weights"})
    """Keys for engines that already run; the others are for engines that Ludus starts."""
    urls: tuple[str, ...] = ()
    """Engines that already run, one URL each. Empty: Ludus starts `replicas` of them, and stops them with the run."""
    api_key: str | None = None
    """The key that the engines at `urls` require."""
    weights: WeightRoute = "auto"
    """How new weights are sent to engines outside this process. auto: only the adapters if adapters are trained, else
    the fastest way to where the engine runs."""

    @property
    def num_started(self) -> int:
        return 0 if self.urls else self.replicas

    def idle(self) -> Iterator[Idle]:
        acting: Any = self.acts_with_urls if self.urls else type(self).model_fields.keys() - {"api_key"}
        for name in type(self).model_fields.keys() - acting:
            if self.is_set(name):
                yield Idle(name, f"kind is {self.kind!r} and urls are {'given' if self.urls else 'not'}")
