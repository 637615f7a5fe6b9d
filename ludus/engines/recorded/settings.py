"""Settings of the engine that samples nothing.

Knows: plain values.  Knows not: torch, models.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from ludus.engines.settings import EngineSettings


class RecordedSettings(EngineSettings):
    """For a run that is replayed from its record; `ludus replay` sets it."""

    implementation: ClassVar[str] = "ludus.engines.recorded.engine:KIND"
    kind: Literal["recorded"] = "recorded"
