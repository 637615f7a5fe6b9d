"""Encodes the page's data as JSON that every browser can parse.

Knows: JSON.  Knows not: what the data means.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def to_json(value: Any) -> str:
    """JSON on one line, in ASCII; NaN and infinities become null."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(finite_only(value), allow_nan=False)


def finite_only(value: Any) -> Any:
    """The value with NaN and infinities replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite_only(inner) for name, inner in value.items()}
    return [finite_only(inner) for inner in value] if isinstance(value, list | tuple) else value
