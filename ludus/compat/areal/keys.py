"""What becomes of each key of AReaL's configuration: a table, for keys that can be said one by one.

Knows: AReaL's keys, and Ludus's.  Knows not: values that depend on each other; `migrate/areal.py` does.
Keys are patterns with `*`; the first that fits counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SAME: Mapping[str, str] = {
    "seed": "seed",
    "workflow_kwargs": "workflow_kwargs",
    "eval_workflow_kwargs": "eval_workflow_kwargs",
    "rollout.max_concurrent_rollouts": "rollout.max_concurrent_rollouts",
    "rollout.max_head_offpolicyness": "rollout.max_head_offpolicyness",
    "rollout.request_timeout": "rollout.episode_timeout_s",
    "rollout.agent.mode": "rollout.agent.mode",
    "rollout.agent.turn_discount": "rollout.agent.turn_discount",
    "rollout.agent.export_style": "rollout.agent.export_style",
    "gconfig.n_samples": "gconfig.n_samples",
    "gconfig.max_new_tokens": "gconfig.max_new_tokens",
    "gconfig.temperature": "gconfig.temperature",
    "gconfig.top_p": "gconfig.top_p",
    "gconfig.stop": "gconfig.stop",
    "gconfig.stop_token_ids": "gconfig.stop_token_ids",
    "actor.path": "model.path",
    "actor.gradient_checkpointing": "trainer.activation_checkpointing",
    "actor.mb_spec.max_tokens_per_mb": "trainer.row_tokens",
    "actor.optimizer.lr": "trainer.optimizer.lr",
    "actor.optimizer.weight_decay": "trainer.optimizer.weight_decay",
    "actor.optimizer.eps": "trainer.optimizer.eps",
    "actor.optimizer.gradient_clipping": "trainer.optimizer.max_grad_norm",
    "actor.ppo_n_minibatches": "algorithm.minibatches",
    "train_dataset.batch_size": "train_dataset.batch_size",
    "train_dataset.shuffle": "train_dataset.shuffle",
    "evaluator.freq_steps": "eval.every_steps",
    "evaluator.eval_before_train": "eval.before",
}
"""By AReaL's key ours, with the same meaning and unit."""

_SECTIONS = """
    actor allocation_mode async_training checkpointer cluster critic defaults dynamic_bs enable_offload eval_gconfig
    eval_workflow eval_workflow_kwargs evaluator experiment_name gconfig launcher memory_profiler perf_tracer recover
    ref rollout saver scheduler seed server_only sglang stats_logger teacher tokenizer_path total_train_epochs
    total_train_n_seqs total_train_steps train_dataset trial_name valid_dataset vllm workflow workflow_kwargs
"""
SECTIONS = frozenset(_SECTIONS.split())
"""Of AReaL's own configuration; its users add others for their agents."""

_PLACEMENT = "one process places engine and trainer by itself"
_ENGINE = "Ludus serves the model with its own engine"
_RECORD = "every episode is recorded in the run's folder: `ludus report`, `ludus export`"
_EXACT = "tokens are kept as they were sampled, whatever the template does"


@dataclass(frozen=True, slots=True)
class Harmless:
    """A key that does nothing here as long as its value is one of those; any other is left out."""

    values: tuple[Any, ...]
    note: str
    otherwise: str


HARMLESS: Mapping[str, Harmless] = {
    "enable_offload": Harmless((False,), _PLACEMENT, "weights are not moved off the device while they wait"),
    "dynamic_bs": Harmless(
        (False,), "a batch is complete groups", "a batch is always complete groups; see algorithm.dynamic_sampling"
    ),
    "async_training": Harmless(
        (True,), "rollout.max_head_offpolicyness decides it", "set rollout.max_head_offpolicyness: 0"
    ),
    "scheduler.type": Harmless((None, "local"), _PLACEMENT, "Ludus runs in one process"),
    "cluster.n_nodes": Harmless((1,), _PLACEMENT, "Ludus runs on one machine"),
    "rollout.queue_size": Harmless((None,), "there is no such queue", "there is no such queue"),
    "rollout.agent.chat_template_type": Harmless(("hf", "concat"), _EXACT, "unknown"),
    "*.min_new_tokens": Harmless((0,), "", "answers have no least length"),
    "*.frequency_penalty": Harmless((0, 0.0), "", "it is pinned to 0 while training; see rollout.pinned"),
    "actor.init_from_scratch": Harmless((False,), "", "make one with `ludus models random`"),
    "actor.disable_dropout": Harmless((True,), "there is no dropout in training", "there is no dropout in training"),
    "actor.optimizer.type": Harmless(("adam", "adamw"), "the optimizer is AdamW", "the optimizer is AdamW"),
    "actor.optimizer.min_lr_ratio": Harmless((0, 0.0), "", "the learning rate decays to 0"),
    "actor.importance_sampling_level": Harmless(("token",), "", "ratios are of tokens; there is no ratio of sequences"),
    "actor.discount": Harmless((1, 1.0), "", "there is no critic; see rollout.agent.turn_discount"),
    "actor.gae_lambda": Harmless((1, 1.0), "", "there is no critic; see rollout.agent.turn_discount"),
    "actor.mask_no_eos_with_zero": Harmless((False,), "", "what an agent returns for a cut answer is its own"),
    "actor.overlong_reward_penalty": Harmless((False,), "", "let the agent return the penalty"),
    "actor.use_sapo_loss": Harmless((False,), "", "there is no SAPO loss"),
    "actor.rejection_sampling.metric": Harmless(
        ("ratio",), "the weight is the ratio", "the weight is cut by its ratio; see algorithm.correction.cap"
    ),
    "actor.rejection_sampling.level": Harmless(
        ("token",), "ratios are of tokens", "the weight is cut token by token; see algorithm.correction.cap"
    ),
    "actor.peft_type": Harmless(("lora",), "", "adapters are LoRA's"),
    "rollout.enable_rollout_tracing": Harmless((False, True), _RECORD, ""),
    "perf_tracer.enabled": Harmless((False,), "", "see `ludus bench step --profile` and trace.backend"),
    "memory_profiler.enabled": Harmless((False,), "", "see `ludus bench step --profile`"),
    "*.wandb.mode": Harmless(("disabled",), "", "metrics are in metrics.jsonl: `ludus report`"),
    "*.swanlab.mode": Harmless(("disabled",), "", "metrics are in metrics.jsonl: `ludus report`"),
    "recover.mode": Harmless(
        ("on", "auto", "off", "disabled"), "a run can always be continued: `ludus train --resume`", ""
    ),
    "train_dataset.drop_last": Harmless((True,), "a batch is complete groups", "a batch is complete groups"),
}

NOT_NEEDED: tuple[tuple[str, str], ...] = (
    ("launcher.*", _PLACEMENT),
    ("rollout._version", "there is one version"),
    ("actor.is_critic", "there is no critic"),
    ("actor.grad_reduce_dtype", "gradients add up in float32"),
    ("*.experiment_name", "the run's name says it"),
    ("*.trial_name", "the run's name says it"),
    ("*.fileroot", "run_root says it"),
    ("cluster.*", _PLACEMENT),
    ("allocation_mode", _PLACEMENT),
    ("*.backend", _PLACEMENT),
    ("*.scheduling_spec", _PLACEMENT),
    ("*.scheduling_strategy*", _PLACEMENT),
    ("scheduler.*", _PLACEMENT),
    ("actor.fsdp*", _PLACEMENT),
    ("actor.megatron*", _PLACEMENT),
    ("actor.archon*", _PLACEMENT),
    ("actor.weight_update_mode", "publishing weights costs no copy"),
    ("actor.enable_tree_training", "shared prefixes are always computed once"),
    ("actor.mb_spec.*", "trainer.row_tokens says it"),
    ("actor.max_new_tokens", "gconfig.max_new_tokens says it"),
    ("actor.group_size", "gconfig.n_samples says it"),
    ("actor.log_*", _RECORD),
    ("actor.pad_*", "rows are packed"),
    ("actor.attn_impl", _ENGINE),
    ("actor.optimizer.offload*", _PLACEMENT),
    ("actor.optimizer.initial_loss_scale", "weights and gradients need no loss scale"),
    ("actor.optimizer.*loss_scal*", "weights and gradients need no loss scale"),
    ("actor.optimizer.hysteresis", "weights and gradients need no loss scale"),
    ("actor.overlong_*", "actor.overlong_reward_penalty is not set"),
    ("actor.sapo_*", "actor.use_sapo_loss is not set"),
    ("actor.prox_logp_method", "each step computes what it needs"),
    ("actor.kl_estimator", "the estimator is k3"),
    ("ref.*", "with algorithm.kl the first weights are the reference"),
    ("sglang.*", _ENGINE),
    ("vllm.*", _ENGINE),
    ("server_only", _PLACEMENT),
    ("rollout.setup_timeout", _ENGINE),
    ("rollout.request_retries", "calls stay in the process; see rollout.retries for episodes"),
    ("rollout.pause_grace_period", "weights change between two steps of the engine"),
    ("rollout.dump_to_file", _RECORD),
    ("rollout.check_trajectory_format", _RECORD),
    ("rollout.use_lora", "actor.use_lora says it"),
    ("rollout.lora_*", "actor.lora_* say it"),
    ("rollout.tokenizer_path", "the tokenizer is the model's"),
    ("rollout.return_routed_experts", "experts are computed alike for sampling and training"),
    ("rollout.agent.tool_call_parser", "the parser follows from the model's template; see model.tool_parser"),
    ("rollout.agent.reasoning_parser", "the parser follows from the model's template; see model.tool_parser"),
    ("rollout.agent.set_reward_finish_timeout", "rewards may come as long as the session is open"),
    ("rollout.agent.agent_cls_path", "workflow says it"),
    ("*.lora_name", "the adapter needs no name"),
    ("*.num_workers", "rows are read at once"),
    ("*.pin_memory", "rows are read at once"),
    ("*dataset.type", "rows are what they are"),
    ("*dataset.scheduling_spec", _PLACEMENT),
    ("valid_dataset.batch_size", "all held-out rows are played"),
    ("valid_dataset.shuffle", "all held-out rows are played"),
    ("valid_dataset.drop_last", "all held-out rows are played"),
    ("perf_tracer.*", "perf_tracer is off"),
    ("memory_profiler.*", "memory_profiler is off"),
    ("stats_logger.*", "metrics are in metrics.jsonl: `ludus report`"),
    ("recover.*", "a run can always be continued: `ludus train --resume`"),
    ("saver.mode", "a checkpoint is there as a whole or not at all"),
    ("checkpointer.*", "a checkpoint is there as a whole or not at all"),
)

LEFT_OUT: tuple[tuple[str, str], ...] = (
    ("total_train_n_seqs", "say how long with total_train_steps, total_train_epochs or total_train_seconds"),
    ("defaults", "files that include others are not followed: import the resolved configuration"),
    ("critic.*", "there is no critic"),
    ("teacher.*", "there is no distillation"),
    ("actor.c_clip", "there is no dual clip"),
    ("actor.m2_threshold", "there is no M2PO"),
    ("actor.rejection_sampling.*", "only its `upper` is taken, as algorithm.correction.cap"),
    ("*.max_length", "filter the rows before, or cap sequences with algorithm.max_sequence_tokens"),
    ("rollout.admin_api_key", "`ludus train` makes a key for each run, or reads LUDUS_ADMIN_KEY"),
    ("rollout.agent.admin_api_key", "`ludus train` makes a key for each run, or reads LUDUS_ADMIN_KEY"),
    ("*.freq_secs", "a run is saved and evaluated by steps"),
)
