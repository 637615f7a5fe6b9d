"""A model as its user describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Model:
    name: str = "agent-001"
    project: str = "mail"
    base_model: str = "smollm2-135m"
    internal_config: Mapping[str, Any] = field(default_factory=dict)
