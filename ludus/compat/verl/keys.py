"""verl's names for keys of the configuration that mean the same here, so that its command lines go on working.

Knows: names and plain values.  Knows not: what any key does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ludus.compat import keys
from ludus.compat.keys import Key, to
from ludus.errors import ConfigError


def _one_file(value: Any) -> Any:
    if isinstance(value, list):
        if len(value) != 1:
            raise ConfigError(f"{len(value)} files of rows cannot be given; write them into one")
        return value[0]
    return value


def _if_positive(value: Any) -> Any:
    """verl switches off what is counted with -1."""
    return value if isinstance(value, int) and value > 0 else None


def _top_k(value: Any) -> Any:
    return max(value, 0) if isinstance(value, int) else value


def _one_of(**kinds: str) -> Callable[[Any], Any]:
    """Ours by verl's name; names that have no counterpart are refused."""

    def convert(value: Any) -> Any:
        if value not in kinds:
            raise ConfigError(f"{value!r} is not available here; there are {', '.join(kinds)}")
        return kinds[value]

    return convert


def _scale(value: Any) -> str:
    return "std" if value else "none"


_NORMALISERS = {"token-mean": "token", "seq-mean-token-mean": "episode"}
_ROLLOUT = "actor_rollout_ref.rollout."
_ACTOR = "actor_rollout_ref.actor."
KEYS: Mapping[str, Key] = {
    "data.train_files": to("train_dataset.path", convert=_one_file),
    "data.val_files": to("valid_dataset.path", convert=_one_file),
    "data.val_max_samples": to("valid_dataset.max_rows", convert=_if_positive),
    "actor_rollout_ref.model.lora_rank": to("model.lora.rank", convert=_if_positive),
    _ROLLOUT + "top_k": to("gconfig.top_k", convert=_top_k),
    _ROLLOUT + "val_kwargs.top_k": to("eval_gconfig.top_k", convert=_top_k),
    _ACTOR + "optim.lr_warmup_steps": to("trainer.optimizer.warmup_steps", convert=_if_positive),
    _ACTOR + "policy_loss.loss_mode": to("algorithm.loss.kind", convert=_one_of(vanilla="clip", cispo="cispo")),
    _ACTOR + "loss_agg_mode": to("algorithm.normaliser.kind", convert=_one_of(**_NORMALISERS)),
    "algorithm.norm_adv_by_std_in_grpo": to("algorithm.advantage.scale", convert=_scale),
    "algorithm.adv_estimator": to("algorithm.name", convert=_one_of(grpo="grpo", rloo="rloo")),
    "trainer.test_freq": to("eval.every_steps", convert=_if_positive),
    "trainer.save_freq": to("checkpoint.every_steps", convert=_if_positive),
    **keys.keys_beside(__file__),
}
_ROOTS = ("actor_rollout_ref", "data", "custom_reward_function", "critic", "reward_model")
"""Names that nothing here has at the top: a key below them that is not in the table has no counterpart."""


def renamed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with verl's keys under our names.

    Raises ConfigError for one that has no counterpart, whose value cannot be, or that is given under both names.
    """
    return keys.renamed(KEYS, data, "verl", _ROOTS)
