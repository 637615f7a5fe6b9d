"""verl's names for keys of the configuration that mean the same here, so that its command lines go on working.

Knows: names and plain values.  Knows not: what any key does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ludus.compat import keys
from ludus.compat.keys import Key, fixed, to
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
    "data.train_batch_size": to("train_dataset.batch_size"),
    "data.val_max_samples": to("valid_dataset.max_rows", convert=_if_positive),
    "data.shuffle": to("train_dataset.shuffle"),
    "data.seed": to("seed"),
    "data.max_prompt_length": to("rollout.prompt_length"),
    "data.max_response_length": to("rollout.response_length"),
    "data.return_raw_chat": fixed(True, note="agent loops always get the messages"),
    "actor_rollout_ref.model.path": to("model.path"),
    "actor_rollout_ref.model.custom_chat_template": to("model.chat_template"),
    "actor_rollout_ref.model.lora_rank": to("model.lora.rank", convert=_if_positive),
    "actor_rollout_ref.model.lora_alpha": to("model.lora.alpha"),
    "actor_rollout_ref.model.enable_gradient_checkpointing": to("trainer.activation_checkpointing"),
    _ROLLOUT + "mode": fixed("async", note="the model is always served beside the agents"),
    _ROLLOUT + "multi_turn.enable": fixed(True, note="the row's loop says whether there are turns"),
    _ROLLOUT + "calculate_log_probs": fixed(True, note="logprobs are always recorded"),
    _ROLLOUT + "trace.token2text": fixed(False, note="traces show text in any case"),
    _ROLLOUT + "n": to("gconfig.n_samples"),
    _ROLLOUT + "temperature": to("gconfig.temperature"),
    _ROLLOUT + "top_p": to("gconfig.top_p"),
    _ROLLOUT + "top_k": to("gconfig.top_k", convert=_top_k),
    _ROLLOUT + "prompt_length": to("rollout.prompt_length"),
    _ROLLOUT + "response_length": to("rollout.response_length"),
    _ROLLOUT + "max_model_len": to("model.context_length"),
    _ROLLOUT + "val_kwargs.n": to("eval_gconfig.n_samples"),
    _ROLLOUT + "val_kwargs.temperature": to("eval_gconfig.temperature"),
    _ROLLOUT + "val_kwargs.top_p": to("eval_gconfig.top_p"),
    _ROLLOUT + "val_kwargs.top_k": to("eval_gconfig.top_k", convert=_top_k),
    _ACTOR + "optim.lr": to("trainer.optimizer.lr"),
    _ACTOR + "optim.weight_decay": to("trainer.optimizer.weight_decay"),
    _ACTOR + "optim.lr_warmup_steps": to("trainer.optimizer.warmup_steps", convert=_if_positive),
    _ACTOR + "grad_clip": to("trainer.optimizer.max_grad_norm"),
    _ACTOR + "clip_ratio": to("algorithm.loss.clip_low", "algorithm.loss.clip_high"),
    _ACTOR + "clip_ratio_low": to("algorithm.loss.clip_low"),
    _ACTOR + "clip_ratio_high": to("algorithm.loss.clip_high"),
    _ACTOR + "policy_loss.loss_mode": to("algorithm.loss.kind", convert=_one_of(vanilla="clip", cispo="cispo")),
    _ACTOR + "loss_agg_mode": to("algorithm.normaliser.kind", convert=_one_of(**_NORMALISERS)),
    "algorithm.norm_adv_by_std_in_grpo": to("algorithm.advantage.scale", convert=_scale),
    "algorithm.adv_estimator": to("algorithm.name", convert=_one_of(grpo="grpo", rloo="rloo")),
    "algorithm.filter_groups.enable": to("algorithm.dynamic_sampling"),
    "trainer.total_epochs": to("total_train_epochs"),
    "trainer.total_training_steps": to("total_train_steps"),
    "trainer.experiment_name": to("name"),
    "trainer.test_freq": to("eval.every_steps", convert=_if_positive),
    "trainer.val_before_train": to("eval.before"),
    "trainer.save_freq": to("checkpoint.every_steps", convert=_if_positive),
    "trainer.max_actor_ckpt_to_keep": to("checkpoint.keep"),
    _ROLLOUT + "multi_turn.*": to("rollout.multi_turn.*"),
    _ROLLOUT + "agent.*": to("rollout.agent.*"),
    _ROLLOUT + "trace.*": to("trace.*"),
    "custom_reward_function.*": to("reward.custom_reward_function.*"),
}
_ROOTS = ("actor_rollout_ref", "data", "custom_reward_function", "critic", "reward_model")
"""Names that nothing here has at the top: a key below them that is not in the table has no counterpart."""


def renamed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with verl's keys under our names.

    Raises ConfigError for one that has no counterpart, whose value cannot be, or that is given under both names.
    """
    return keys.renamed(KEYS, data, "verl", _ROOTS)
