"""Translates ART's internal configuration of a model to keys of Ludus.

Knows: which of its keys correspond to which of Ludus's.  Knows not: models, backends.
Invariant: a key without a counterpart is named in a warning; most of these configure ART's own runtime.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ludus.compat.keys import Given, Meaning, keys_beside, nested, read
from ludus.settings import merged

logger = logging.getLogger(__name__)


def _betas(_value: object, given: Given) -> Meaning:
    """AdamW's two, with ART's default for the one that is not given."""
    betas = [given.get("trainer_args.adam_beta1", 0.9), given.get("trainer_args.adam_beta2", 0.99)]
    return Meaning("taken", ours={"trainer.optimizer.betas": betas})


KEYS = keys_beside(__file__, dict.fromkeys(("trainer_args.adam_beta1", "trainer_args.adam_beta2"), _betas))

ITS_OWN = {
    *("init_args", "engine_args", "peft_args", "trainer_args", "torchtune_args", "tinker_args", "tinker_native_args"),
    *("trainer_gpu_ids", "inference_gpu_ids", "rollout_weights_mode", "allow_unvalidated_arch"),
    *("chat_template", "chat_template_path", "chat_template_kwargs", "chat_template_content_format"),
    *("chat_template_tool_schema_format", "_decouple_vllm_and_unsloth"),
}
"""Keys of ART's internal configuration, of any version."""


def acting_keys(given: Mapping[str, Any]) -> dict[str, Any]:
    """An internal configuration as keys of Ludus; it may contain ART's keys, Ludus's, or both."""
    theirs = internal_model_config(**{name: value for name, value in given.items() if name in ITS_OWN})
    return merged(theirs, {name: value for name, value in given.items() if name not in ITS_OWN})


def internal_model_config(**groups: Any) -> dict[str, Any]:
    """A model's `_internal_config` as keys of Ludus, from `init_args`, `peft_args` and the like; a warning names keys
    without a counterpart."""
    found = list(read(KEYS, {name: group for name, group in groups.items() if group}))
    idle = [".".join(path) for path, _, meaning in found if meaning is None]
    if idle:
        logger.warning(
            "these keys do not act here: %s. Their runtime is not ours; docs/configuration.md has the keys that act",
            ", ".join(idle),
        )
    acting = [meaning.ours for _, _, meaning in found if meaning is not None]
    return nested({tuple(name.split(".")): value for ours in acting for name, value in ours.items()})
