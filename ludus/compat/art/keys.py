"""ART's internal configuration of a model, as keys of Ludus's own.

Knows: which of its keys stand for which of Ludus's.  Knows not: models, backends.
Invariant: a key that stands for nothing here is named in a warning; ART's own runtime is what most of them are about.
"""

from __future__ import annotations

import logging
from typing import Any

from ludus.compat.keys import keys_beside, nested, read

logger = logging.getLogger(__name__)

KEYS = keys_beside(__file__)


def internal_model_config(**groups: Any) -> dict[str, Any]:
    """A model's `_internal_config` in Ludus's keys, by `init_args`, `peft_args` and its other arguments; a
    warning names what has none."""
    found = list(read(KEYS, {name: group for name, group in groups.items() if group}))
    idle = [".".join(path) for path, _, meaning in found if meaning is None]
    if idle:
        logger.warning(
            "these keys do not act here: %s. Their runtime is not ours; docs/configuration.md has the keys that act",
            ", ".join(idle),
        )
    acting = [meaning.ours for _, _, meaning in found if meaning is not None]
    return nested({tuple(name.split(".")): value for ours in acting for name, value in ours.items()})
