"""ART's internal configuration of a model, as keys of Ludus's own.

Knows: which of its keys stand for which of ours.  Knows not: models, backends.
Invariant: a key that stands for nothing here is named in a warning; ART's own runtime is what most of them are about.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)

# By group and name in ART: the path of the key here.
_KEYS: dict[tuple[str, str], tuple[str, ...]] = {
    ("init_args", "max_seq_length"): ("model", "context_length"),
    ("peft_args", "r"): ("model", "lora", "rank"),
    ("peft_args", "lora_alpha"): ("model", "lora", "alpha"),
    ("peft_args", "target_modules"): ("model", "lora", "target_modules"),
    ("trainer_args", "learning_rate"): ("trainer", "optimizer", "lr"),
    ("trainer_args", "weight_decay"): ("trainer", "optimizer", "weight_decay"),
    ("trainer_args", "max_grad_norm"): ("trainer", "optimizer", "max_grad_norm"),
}


def internal_model_config(
    *,
    init_args: Mapping[str, Any] | None = None,
    engine_args: Mapping[str, Any] | None = None,
    peft_args: Mapping[str, Any] | None = None,
    trainer_args: Mapping[str, Any] | None = None,
    chat_template_path: str | None = None,
    **others: Any,
) -> dict[str, Any]:
    """What a model's `_internal_config` says in Ludus's keys; a warning names what has none."""
    groups = {"init_args": init_args, "engine_args": engine_args, "peft_args": peft_args, "trainer_args": trainer_args}
    own: dict[str, Any] = {}
    deaf = list(others)
    if chat_template_path is not None:
        _put(own, ("model", "chat_template"), chat_template_path)
    for group, values in groups.items():
        for name, value in (values or {}).items():
            path = _KEYS.get((group, name))
            if path is not None:
                _put(own, path, value)
            else:
                deaf.append(f"{group}.{name}")
    if deaf:
        logger.warning(
            "these keys do not act here: %s. Their runtime is not ours; docs/configuration.md has the keys that act",
            ", ".join(deaf),
        )
    return own


def _put(own: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        own = own.setdefault(name, {})
    own[path[-1]] = value
