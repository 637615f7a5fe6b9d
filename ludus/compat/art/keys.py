"""ART's internal configuration of a model, as keys of Ludus's own.

Knows: which of its keys stand for which of Ludus's.  Knows not: models, backends.
Invariant: a key that stands for nothing here is named in a warning; ART's own runtime is what most of them are about.
"""

from __future__ import annotations

import logging
from typing import Any

from ludus.compat.keys import keys_beside, read
from ludus.settings import with_value

logger = logging.getLogger(__name__)

KEYS = keys_beside(__file__)


def internal_model_config(**groups: Any) -> dict[str, Any]:
    """What a model's `_internal_config` says in Ludus's keys, by `init_args`, `peft_args` and its other arguments; a
    warning names what has none."""
    own: dict[str, Any] = {}
    idle: list[str] = []
    for path, _, meaning in read(KEYS, {name: group for name, group in groups.items() if group}):
        if meaning is None:
            idle.append(".".join(path))
        else:
            for name, value in meaning.ours.items():
                own = with_value(own, tuple(name.split(".")), value, whole=name)
    if idle:
        logger.warning(
            "these keys do not act here: %s. Their runtime is not ours; docs/configuration.md has the keys that act",
            ", ".join(idle),
        )
    return own
