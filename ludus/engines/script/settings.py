"""Settings of the engine that answers from a file.

Knows: plain values.  Knows not: torch, models.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic

from ludus.engines.settings import EngineSettings


class ScriptSettings(EngineSettings):
    """Samples nothing: gives prepared answers, to try out agents."""

    implementation: ClassVar[str] = "ludus.engines.script.engine:KIND"
    kind: Literal["scripted"] = "scripted"
    answers: str
    """A file with one answer per line, given in this order; after the last it starts again. `.jsonl`: each line is a
    JSON string, which may have several lines and the model's own markup of tool calls."""
    token_delay_s: float = pydantic.Field(default=0.0, ge=0)
    """Delay before each token, to simulate a slow model."""
