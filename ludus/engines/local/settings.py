"""Settings of Ludus's own engine.

Knows: plain values.  Knows not: torch, models.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from ludus.engines.settings import BatchSettings, EngineSettings

KernelName = Literal["auto", "native", "triton", "eager"]


class InferenceSettings(BatchSettings):
    """How Ludus's own engine samples, in this process or another."""

    kernels: KernelName = "auto"
    """auto: triton on a CUDA card; native on the CPU if a C++ compiler is found; else eager."""


class LocalSettings(InferenceSettings, EngineSettings):
    """In this process, on the tensors that are trained."""

    implementation: ClassVar[str] = "ludus.engines.local.engine:KIND"
    kind: Literal["local"] = "local"
