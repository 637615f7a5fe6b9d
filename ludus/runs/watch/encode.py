"""What the page is told, as JSON that every browser reads.

Knows: JSON.  Knows not: what is told.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def to_json(value: Any) -> str:
    """On one line, in ASCII; numbers that JSON does not have are null."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(finite_only(value), allow_nan=False)


def finite_only(value: Any) -> Any:
    """The value with null for every number that is infinite or none."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite_only(inner) for name, inner in value.items()}
    return [finite_only(inner) for inner in value] if isinstance(value, list | tuple) else value
