"""What becomes of each key of AReaL's configuration: one table, with rules for keys that depend on others.

Knows: AReaL's keys and defaults, and Ludus's keys.  Knows not: files, reports, which names stood for a key before.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from ludus.compat.keys import Given, Meaning, Rule, Table, fixed, left_out, not_needed, to

_FILES = (".jsonl", ".json", ".csv", ".parquet")
_NO_LIMIT = 10**6
"""AReaL's top_k of 1e8, and whatever else is larger than a vocabulary, keeps all of it."""
_MINIBATCHES = 4
"""AReaL's default, where Ludus takes one."""

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
_PARSER = "the parser follows from the model's template; see model.tool_parser"
_METRICS = "metrics are in metrics.jsonl: `ludus report`"
_STEPS = "a run is saved by steps, and when it ends; set checkpoint.every_steps"
_OF_BATCHES = ("batch_size", "shuffle", "drop_last")
_UNKNOWN = "how many steps there will be is not known"
_DISCOUNT = "there is no critic; see rollout.agent.turn_discount"


# ---- rules of several keys


def _same(*names: str) -> dict[str, Rule]:
    """Keys that are called so here too."""
    return {name: to(name) for name in names}


def _as(other: str, note: str, default: Any = None) -> Rule:
    """A key that says what another says already; with another value it would act."""

    def rule(value: Any, given: Given) -> Meaning:
        return Meaning("not needed" if value == given.get(other, default) else "left out", note)

    return rule


def _first(ours: str, *names: str, note: str = "") -> dict[str, Rule]:
    """Keys for one of Ludus's: the first that is given counts."""

    def rule_of(idx: int) -> Rule:
        def rule(value: Any, given: Given) -> Meaning:
            before = next((name for name in names[:idx] if name in given), None)
            return to(ours, note=note)(value, given) if before is None else Meaning("not needed", f"{before} says it")

        return rule

    return {name: rule_of(idx) for idx, name in enumerate(names)}


def _in_mode(mode: str, ours: str) -> Rule:
    """A key that acts in one mode of playing agents."""

    def rule(value: Any, given: Given) -> Meaning:
        if given.get("rollout.agent.mode") != mode:
            return Meaning("not needed", f"it acts with rollout.agent.mode={mode} alone")
        return Meaning("taken", ours={ours: value})

    return rule


# ---- the run and its agents


def _name(_value: Any, given: Given) -> Meaning:
    parts = [str(given[key]) for key in ("experiment_name", "trial_name") if key in given]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts)).strip(".-_")
    return Meaning("taken", name, {"name": name}) if name else Meaning("left out", "no folder can be called so")


def _agent(key: str) -> Rule:
    def rule(value: Any, _given: Given) -> Meaning:
        if not isinstance(value, str):
            return Meaning("left out", f"pass it in Python: Trainer(config).train({key}=...)")
        if not value.startswith("areal."):
            return Meaning("taken", ours={key: value})
        if not _is_here(f"ludus.compat.{value}"):
            return Meaning("left out", f"there is no ludus.compat.{value}; name an agent of your own")
        return Meaning("changed", "the same name below ludus.compat", {key: f"ludus.compat.{value}"})

    return rule


def _is_here(name: str) -> bool:
    module, _, attribute = name.replace(":", ".").rpartition(".")
    try:
        return hasattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError:
        return False


def _timeout(value: Any, given: Given) -> Meaning:
    if given.get("rollout.agent.mode") == "online":
        return Meaning("not needed", "sessions that others play end when they are idle")
    return Meaning("taken", ours={"rollout.episode_timeout_s": value})


def _rows(key: str) -> Rule:
    def rule(value: Any, _given: Given) -> Meaning:
        if str(value).endswith(_FILES) or ":" in str(value):
            return Meaning("taken", ours={key: value})
        note = f"{value} is no file; pass rows in Python, or name 'pkg.mod:function' that returns them"
        return Meaning("left out", note)

    return rule


def _epochs(value: Any, given: Given) -> Meaning:
    if "total_train_steps" in given:
        return Meaning("not needed", "total_train_steps says when to stop")
    return Meaning("taken", ours={"total_train_epochs": value})


# ---- the model and how it is sampled


def _dtype(value: Any, _given: Given) -> Meaning:
    if value in ("bfloat16", "float32"):
        return Meaning("taken", ours={"model.dtype": value})
    return Meaning("left out", f"{value} is not available; model.dtype is bfloat16 or float32")


def _adapter(_value: Any, given: Given) -> Meaning:
    """`use_lora` and what says how; AReaL's defaults, where they are not set."""
    if not given.get("actor.use_lora"):
        return Meaning("not needed", "all weights are trained")
    rank, alpha = given.get("actor.lora_rank") or 32, given.get("actor.lora_alpha") or 16
    modules = list(given.get("actor.target_modules") or ["all-linear"])
    named = {} if modules == ["all-linear"] else {"target_modules": modules}
    ours = {"rank": rank, "alpha": alpha, **named}
    return Meaning("taken", ours={f"model.lora.{name}": of_adapter for name, of_adapter in ours.items()})


def _sampling(section: str) -> dict[str, Rule]:
    """Of `gconfig`, or of `eval_gconfig`."""

    def temperature(value: Any, given: Given) -> Meaning:
        if given.get(f"{section}.greedy"):
            return Meaning("not needed", f"{section}.greedy says it")
        return Meaning("taken", ours={f"{section}.temperature": value})

    def greedy(value: Any, _given: Given) -> Meaning:
        if not value:
            return Meaning("not needed", "a temperature above 0 samples")
        return Meaning("changed", "0 is greedy", {f"{section}.temperature": 0.0})

    def top_k(value: Any, _given: Given) -> Meaning:
        if 0 <= value <= _NO_LIMIT:
            return Meaning("taken", ours={f"{section}.top_k": int(value)})
        return Meaning("changed", "0 keeps the whole vocabulary", {f"{section}.top_k": 0})

    names = ("n_samples", "max_new_tokens", "top_p", "stop", "stop_token_ids")
    by_name: dict[str, Rule] = {"temperature": temperature, "greedy": greedy, "top_k": top_k}
    return _same(*(f"{section}.{name}" for name in names)) | {f"{section}.{name}": by_name[name] for name in by_name}


# ---- the optimizer


def _betas(_value: Any, given: Given) -> Meaning:
    betas = [given.get("actor.optimizer.beta1", 0.9), given.get("actor.optimizer.beta2", 0.999)]
    return Meaning("taken", ours={"trainer.optimizer.betas": betas})


def _optimizer_steps(given: Given) -> int | None:
    """Of the whole training. None: it is not known."""
    steps = given.get("total_train_steps")
    return None if steps is None else int(steps) * int(given.get("actor.ppo_n_minibatches") or _MINIBATCHES)


def _warmup(value: Any, given: Given) -> Meaning:
    total = _optimizer_steps(given)
    if not value:
        return Meaning("not needed")
    if total is None:
        return Meaning("left out", f"{_UNKNOWN}; set trainer.optimizer.warmup_steps")
    steps = {"trainer.optimizer.warmup_steps": round(value * total)}
    return Meaning("changed", f"{value} of {total} optimizer steps", steps)


def _decay(value: Any, _given: Given) -> Meaning:
    if value == "constant":
        return Meaning("taken", "trainer.optimizer.decay")
    if value not in ("linear", "cosine"):
        return Meaning("left out", f"{value} is not available; trainer.optimizer.decay is linear or cosine")
    return Meaning("taken", ours={"trainer.optimizer.decay": value})


# ---- loss and credit


def _ratios(given: Given) -> tuple[str, str]:
    """What corrects for the age of tokens, and why."""
    if given.get("actor.use_decoupled_loss"):
        return "truncate", "ratios are to the policy before the batch, whose weight to the sampler is capped"
    if given.get("actor.recompute_logprob"):
        return "none", "ratios are to the policy before the batch"
    return "bypass", "ratios are to the policy that sampled"


def defaults(given: Given) -> dict[str, Any]:
    """Keys of Ludus that state what AReaL does where nothing is given."""
    if not any(key.startswith("actor.") for key in given):
        return {}
    kind, _ = _ratios(given)
    return {**({} if kind == "truncate" else {"algorithm.correction": kind}), "algorithm.minibatches": _MINIBATCHES}


def _correction(_value: Any, given: Given) -> Meaning:
    kind, note = _ratios(given)
    return Meaning("changed", f"algorithm.correction={kind}: {note}")


_CAPS = _first(
    "algorithm.correction.cap",
    "actor.rejection_sampling.upper",
    "actor.behav_imp_weight_cap",  # names that it had before
    "actor.behave_imp_weight_cap",
    note="weights above are cut to it, not their tokens left out",
)


def _cap(name: str) -> Rule:
    def rule(value: Any, given: Given) -> Meaning:
        if given.get("actor.use_decoupled_loss"):
            return _CAPS[name](value, given)
        return Meaning("not needed", "it acts with actor.use_decoupled_loss alone")

    return rule


def _clip(*names: str) -> Rule:
    def rule(value: Any, given: Given) -> Meaning:
        if given.get("actor.ppo_n_minibatches", _MINIBATCHES) == 1 and _ratios(given)[0] != "bypass":
            return Meaning("not needed", "with one minibatch the ratio is 1, and nothing is clipped")
        above = {} if "actor.eps_clip_higher" in given else {"algorithm.loss.clip_high": value}
        return Meaning("taken", ours=dict.fromkeys(names, value) | above)

    return rule


def _kl(value: Any, _given: Given) -> Meaning:
    if not value:
        return Meaning("not needed", "there is no KL penalty")
    return Meaning("changed", "in the loss; there it is taken off the reward", {"algorithm.kl.beta": value})


def _norm(_value: Any, given: Given) -> Meaning:
    level = given.get("actor.reward_norm.mean_level")
    baseline = "leave_one_out" if given.get("actor.reward_norm.mean_leave1out") else "mean"
    ours = {
        "algorithm.advantage.baseline": baseline,
        "algorithm.advantage.scale": "std" if _is_scaled(given) else "none",
    }
    if level == "group":
        return Meaning("taken", "over the members of a group, by id", ours)
    return Meaning("changed", "GRPO's: over the members of a group, by id", ours)


def _is_scaled(given: Given) -> bool:
    return "actor.reward_norm.mean_level" not in given or "actor.reward_norm.std_level" in given


def _batch_norm(value: Any, _given: Given) -> Meaning:
    note = "advantages are not normalised once more over the batch"
    return Meaning("not needed" if value is None else "left out", note)


def _affine(neutral: float | None, cancels_when_scaled: bool = False) -> Rule:
    """A change of every reward. neutral: the value that is none; None: any value cancels out."""

    def rule(value: Any, given: Given) -> Meaning:
        if neutral is None or value == neutral or (cancels_when_scaled and _is_scaled(given)):
            return Meaning("not needed", "it cancels out in the advantage")
        return Meaning("left out", "let the agent return the reward as it is to count")

    return rule


NORMS = "actor.*_norm*"
"""Keys where null is a value: nothing is normalised. Elsewhere it says that a key is not set."""

KEYS: Table = {
    **_same("seed", "workflow_kwargs.*", "eval_workflow_kwargs.*", "total_train_steps"),
    "experiment_name": _name,
    "trial_name": _name,
    "cluster.fileroot": to("run_root"),
    "tokenizer_path": _as("actor.path", "the tokenizer is the model's own"),
    "workflow": _agent("workflow"),
    "eval_workflow": _agent("eval_workflow"),
    "total_train_epochs": _epochs,
    "train_dataset.path": _rows("train_dataset.path"),
    "valid_dataset.path": _rows("valid_dataset.path"),
    **_same("train_dataset.batch_size", "train_dataset.shuffle"),
    **_same("rollout.max_concurrent_rollouts", "rollout.max_head_offpolicyness"),
    **_same("rollout.agent.mode", "rollout.agent.turn_discount", "rollout.agent.export_style"),
    "rollout.request_timeout": _timeout,
    "rollout.consumer_batch_size": _as("train_dataset.batch_size", "a batch is train_dataset.batch_size groups"),
    "rollout.agent.subproc_max_workers": _in_mode("subproc", "rollout.agent.subproc_max_workers"),
    "rollout.agent.session_timeout_seconds": _in_mode("online", "rollout.episode_timeout_s"),
    **_sampling("gconfig"),
    **_sampling("eval_gconfig"),
    **_first(
        "model.context_length",
        "gconfig.max_tokens",
        "rollout.agent.engine_max_tokens",
        note="prompt and answer together; no more than the model's own",
    ),
    **not_needed("model.context_length says it", "eval_gconfig.max_tokens"),
    "actor.path": to("model.path"),
    "actor.dtype": _dtype,
    **dict.fromkeys(("actor.use_lora", "actor.lora_rank", "actor.lora_alpha", "actor.target_modules"), _adapter),
    **_first("engine.max_running", "sglang.max_running_requests", "vllm.max_num_seqs"),
    "ref.path": _as("actor.path", "the reference is what training began with"),
    "actor.temperature": _as("gconfig.temperature", "tokens are trained as they were sampled", default=1.0),
    "actor.gradient_checkpointing": to("trainer.activation_checkpointing"),
    "actor.mb_spec.max_tokens_per_mb": to("trainer.row_tokens"),
    "actor.ppo_n_minibatches": to("algorithm.minibatches"),
    "actor.optimizer.lr": to("trainer.optimizer.lr"),
    "actor.optimizer.weight_decay": to("trainer.optimizer.weight_decay"),
    "actor.optimizer.eps": to("trainer.optimizer.eps"),
    "actor.optimizer.gradient_clipping": to("trainer.optimizer.max_grad_norm"),
    "actor.optimizer.beta1": _betas,
    "actor.optimizer.beta2": _betas,
    "actor.optimizer.warmup_steps_proportion": _warmup,
    "actor.optimizer.lr_scheduler_type": _decay,
    "actor.use_decoupled_loss": _correction,
    "actor.recompute_logprob": _correction,
    **{name: _cap(name) for name in _CAPS},
    "actor.eps_clip": _clip("algorithm.loss.clip_low"),
    "actor.eps_clip_higher": _clip("algorithm.loss.clip_high"),
    "actor.kl_ctl": _kl,
    "actor.reward_norm*": _norm,
    "actor.adv_norm*": _batch_norm,
    "actor.reward_scaling": _affine(1.0, cancels_when_scaled=True),
    "actor.reward_bias": _affine(None),
    "actor.reward_clip": _affine(20.0),
    **_first("checkpoint.every_steps", "saver.freq_steps", "checkpointer.freq_steps", "recover.freq_steps"),
    "evaluator.freq_steps": to("eval.every_steps"),
    "evaluator.eval_before_train": to("eval.before"),
    "evaluator.freq_epochs": to(
        "eval.after", convert=lambda _: True, note="after the last step; set eval.every_steps for more"
    ),
    # What is done here anyway.
    "enable_offload": fixed(False, note=_PLACEMENT, otherwise="weights stay on the device while they wait"),
    "dynamic_bs": fixed(False, note="a batch is complete groups; see algorithm.dynamic_sampling"),
    "async_training": fixed(
        True, note="rollout.max_head_offpolicyness decides it", otherwise="set rollout.max_head_offpolicyness: 0"
    ),
    "scheduler.type": fixed("local", note=_PLACEMENT, otherwise="Ludus runs in one process"),
    "cluster.n_nodes": fixed(1, note=_PLACEMENT, otherwise="Ludus runs on one machine"),
    **left_out("there is no such queue", "rollout.queue_size"),
    "rollout.agent.chat_template_type": fixed("hf", "concat", note=_EXACT),
    "*.min_new_tokens": fixed(0, otherwise="answers have no least length"),
    "*.frequency_penalty": fixed(0, otherwise="it is pinned to 0 while training; see rollout.pinned"),
    "actor.init_from_scratch": fixed(False, otherwise="make one with `ludus models random`"),
    "actor.disable_dropout": fixed(True, note="there is no dropout in training"),
    "actor.optimizer.type": fixed("adam", "adamw", note="the optimizer is AdamW"),
    "actor.optimizer.min_lr_ratio": fixed(0, otherwise="the learning rate decays to 0"),
    "actor.importance_sampling_level": fixed("token", otherwise="there is no ratio of sequences"),
    "actor.discount": fixed(1, otherwise=_DISCOUNT),
    "actor.gae_lambda": fixed(1, otherwise=_DISCOUNT),
    "actor.mask_no_eos_with_zero": fixed(False, otherwise="what an agent returns for a cut answer is its own"),
    "actor.overlong_reward_penalty": fixed(False, otherwise="let the agent return the penalty"),
    "actor.use_sapo_loss": fixed(False, otherwise="there is no SAPO loss"),
    "actor.rejection_sampling.metric": fixed("ratio", note="the weight is the ratio; see algorithm.correction.cap"),
    "actor.rejection_sampling.level": fixed("token", note="ratios are of tokens; see algorithm.correction.cap"),
    "actor.peft_type": fixed("lora", note="adapters are LoRA's"),
    "rollout.enable_rollout_tracing": fixed(False, True, note=_RECORD),
    "perf_tracer.enabled": fixed(False, otherwise="see `ludus bench step --profile` and trace.backend"),
    "memory_profiler.enabled": fixed(False, otherwise="see `ludus bench step --profile`"),
    "*.wandb.mode": fixed("disabled", otherwise=_METRICS),
    "*.swanlab.mode": fixed("disabled", otherwise=_METRICS),
    "train_dataset.drop_last": fixed(True, note="a batch is complete groups"),
    # What does something there that nothing does here.
    **left_out(_STEPS, "saver.freq_epochs", "recover.freq_epochs", "checkpointer.freq_epochs"),
    **left_out("a run is saved and evaluated by steps", "*.freq_secs"),
    **left_out("say how long with total_train_steps, total_train_epochs or total_train_seconds", "total_train_n_seqs"),
    **left_out("files that include others are not followed: import the resolved configuration", "defaults"),
    **left_out("there is no critic", "critic.*"),
    **left_out("there is no distillation", "teacher.*"),
    **left_out("there is no dual clip", "actor.c_clip"),
    **left_out("there is no M2PO", "actor.m2_threshold"),
    **left_out("only its `upper` is taken, as algorithm.correction.cap", "actor.rejection_sampling.*"),
    **left_out("filter the rows before, or cap sequences with algorithm.max_sequence_tokens", "*.max_length"),
    **left_out("LUDUS_ADMIN_KEY is read, or made for each run", "rollout.admin_api_key", "rollout.agent.admin_api_key"),
    # What needs no saying here.
    **not_needed("there is one version", "rollout._version"),
    **not_needed("there is no critic", "actor.is_critic"),
    **not_needed("gradients add up in float32", "actor.grad_reduce_dtype"),
    **not_needed("the run's name says it", "*.experiment_name", "*.trial_name"),
    **not_needed("run_root says it", "*.fileroot"),
    **not_needed(_PLACEMENT, "launcher.*", "cluster.*", "allocation_mode", "scheduler.*", "server_only"),
    **not_needed(_PLACEMENT, "*.backend", "*.scheduling_spec", "*.scheduling_strategy*", "actor.optimizer.offload*"),
    **not_needed(_PLACEMENT, "actor.fsdp*", "actor.megatron*", "actor.archon*"),
    **not_needed("publishing weights costs no copy", "actor.weight_update_mode"),
    **not_needed("shared prefixes are always computed once", "actor.enable_tree_training"),
    **not_needed("trainer.row_tokens says it", "actor.mb_spec.*"),
    **not_needed("gconfig.max_new_tokens says it", "actor.max_new_tokens"),
    **not_needed("gconfig.n_samples says it", "actor.group_size"),
    **not_needed(_RECORD, "actor.log_*", "rollout.dump_to_file", "rollout.check_trajectory_format"),
    **not_needed("rows are packed", "actor.pad_*"),
    **not_needed("there is no loss scale", "actor.optimizer.*loss_scal*", "actor.optimizer.hysteresis"),
    **not_needed("actor.overlong_reward_penalty is not set", "actor.overlong_*"),
    **not_needed("actor.use_sapo_loss is not set", "actor.sapo_*"),
    **not_needed("each step computes what it needs", "actor.prox_logp_method"),
    **not_needed("the estimator is k3", "actor.kl_estimator"),
    **not_needed("with algorithm.kl the first weights are the reference", "ref.*"),
    **not_needed(_ENGINE, "sglang.*", "vllm.*", "actor.attn_impl", "rollout.setup_timeout"),
    **not_needed("calls stay in the process; see rollout.retries for episodes", "rollout.request_retries"),
    **not_needed("weights change between two steps of the engine", "rollout.pause_grace_period"),
    **not_needed("actor.use_lora says it", "rollout.use_lora"),
    **not_needed("actor.lora_* say it", "rollout.lora_*"),
    **not_needed("the tokenizer is the model's", "rollout.tokenizer_path"),
    **not_needed("experts are computed alike for sampling and training", "rollout.return_routed_experts"),
    **not_needed(_PARSER, "rollout.agent.tool_call_parser", "rollout.agent.reasoning_parser"),
    **not_needed("rewards may come as long as the session is open", "rollout.agent.set_reward_finish_timeout"),
    **not_needed("workflow says it", "rollout.agent.agent_cls_path"),
    **not_needed("the adapter needs no name", "*.lora_name"),
    **not_needed("rows are read at once", "*.num_workers", "*.pin_memory"),
    **not_needed("rows are what they are", "*dataset.type"),
    **not_needed("all held-out rows are played", *(f"valid_dataset.{each}" for each in _OF_BATCHES)),
    **not_needed("perf_tracer is off", "perf_tracer.*"),
    **not_needed("memory_profiler is off", "memory_profiler.*"),
    **not_needed(_METRICS, "stats_logger.*"),
    **not_needed("a run can always be continued: `ludus train --resume`", "recover.*"),
    **not_needed("a checkpoint is there as a whole or not at all", "saver.mode", "checkpointer.*"),
}
"""By AReaL's key what it comes to."""
