"""The names of `areal.utils.stats_tracker` that an agent uses."""

from ludus.compat.areal.stats_tracker import get

__all__ = [
    "get",
]
