"""Settings of the engine that says what is written in a file.

Knows: plain values.  Knows not: torch, models.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic

from ludus.engines.settings import EngineSettings


class ScriptSettings(EngineSettings):
    """Nothing is sampled: written answers, for agents that are tried."""

    implementation: ClassVar[str] = "ludus.engines.script.engine:KIND"
    kind: Literal["scripted"] = "scripted"
    answers: str
    """A file with an answer a line, in the order in which they are asked for, from the first again behind the last;
    `.jsonl`: each a JSON text, which may have several lines and the model's own marks of tool calls."""
    token_delay_s: float = pydantic.Field(default=0.0, ge=0)
    """Before each token, as a slow model has it."""
