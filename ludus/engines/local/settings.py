"""Settings of Ludus's own engine.

Knows: plain values.  Knows not: torch, models.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ludus.settings import Settings

KernelName = Literal["auto", "native", "flex", "eager"]


class InferenceSettings(Settings):
    """How much memory and how much of a step the engine may take."""

    kv_bytes: int = Field(default=512 * 2**20, gt=0)
    """Memory for keys and values; 512 MiB hold 23,296 tokens of a 135M model in bf16."""
    max_batch_tokens: int = Field(default=2048, gt=0)
    """Most tokens of one step; longer prompts are computed in chunks over several steps."""
    max_running: int = Field(default=256, gt=0)
    """Most sequences of one step; the others wait."""
    keep_kv_on_publish: bool = True
    """False: sequences in flight recompute their keys and values when new weights are published."""
    replicas: int = Field(default=1, ge=1)
    """Engines over the same weights, behind a router; each has a thread and `kv_bytes` of its own."""
    kernels: KernelName = "auto"
    """auto: flex on a CUDA card; native on the CPU if a C++ compiler is found; else eager."""
