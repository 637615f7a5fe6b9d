"""What becomes of each key of AReaL's configuration: rules for those that depend on others, and the table of the rest.

Knows: AReaL's keys and defaults, and Ludus's keys.  Knows not: files, reports, which names stood for a key before.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ludus.compat.keys import Given, Key, Meaning, Rule, Table, keys_beside, to
from ludus.errors import UserError
from ludus.settings import import_object

_FILES = (".jsonl", ".json", ".csv", ".parquet")
_NO_LIMIT = 10**6
"""AReaL's top_k of 1e8, and whatever else is larger than a vocabulary, keeps all of it."""
_MINIBATCHES = 4
"""AReaL's default, where Ludus takes one."""
_MODE = "rollout.agent.mode"


# ---- rules of several keys


def _only(acts: Callable[[Given], object], rule: Rule, note: str) -> Rule:
    """A key that acts beside some values of others alone. note: of what it is without them."""
    return lambda value, given: rule(value, given) if acts(given) else Meaning("not needed", note)


def _is(key: str, value: Any = True) -> Callable[[Given], object]:
    return lambda given: given.get(key) == value


def _as(other: str, note: str, default: Any = None) -> Rule:
    """A key that says what another says already; with another value it would act."""
    return lambda value, given: Meaning("not needed" if value == given.get(other, default) else "left out", note)


def _first(ours: str, *names: str, note: str = "") -> dict[str, Rule]:
    """Keys for one of Ludus's: the first that is given counts."""

    def rule_of(idx: int) -> Rule:
        def rule(value: Any, given: Given) -> Meaning:
            before = next((name for name in names[:idx] if name in given), None)
            return to(ours, note=note)(value, given) if before is None else Meaning("not needed", f"{before} says it")

        return rule

    return {name: rule_of(idx) for idx, name in enumerate(names)}


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
        try:
            import_object(here := f"ludus.compat.{value}")
        except (UserError, ModuleNotFoundError):
            return Meaning("left out", f"there is no {here}; name an agent of your own")
        return Meaning("changed", "the same name below ludus.compat", {key: here})

    return rule


def _rows(key: str) -> Rule:
    def rule(value: Any, _given: Given) -> Meaning:
        if str(value).endswith(_FILES) or ":" in str(value):
            return Meaning("taken", ours={key: value})
        note = f"{value} is no file; pass rows in Python, or name 'pkg.mod:function' that returns them"
        return Meaning("left out", note)

    return rule


# ---- the model and how it is sampled


def _adapter(_value: Any, given: Given) -> Meaning:
    """`use_lora` and what says how; AReaL's defaults, where they are not set."""
    ours = {"rank": given.get("actor.lora_rank") or 32, "alpha": given.get("actor.lora_alpha") or 16}
    modules = list(given.get("actor.target_modules") or ["all-linear"])
    ours |= {} if modules == ["all-linear"] else {"target_modules": modules}
    return Meaning("taken", ours={f"model.lora.{name}": of_adapter for name, of_adapter in ours.items()})


def _sampling(section: str) -> dict[str, Rule]:
    """Of `gconfig`, or of `eval_gconfig`."""

    def greedy(value: Any, _given: Given) -> Meaning:
        if not value:
            return Meaning("not needed", "a temperature above 0 samples")
        return Meaning("changed", "0 is greedy", {f"{section}.temperature": 0.0})

    def top_k(value: Any, _given: Given) -> Meaning:
        if 0 <= value <= _NO_LIMIT:
            return Meaning("taken", ours={f"{section}.top_k": int(value)})
        return Meaning("changed", "0 keeps the whole vocabulary", {f"{section}.top_k": 0})

    name = f"{section}.temperature"
    return {
        name: _only(lambda given: not given.get(f"{section}.greedy"), to(name), f"{section}.greedy says it"),
        f"{section}.greedy": greedy,
        f"{section}.top_k": top_k,
    }


# ---- the optimizer


def _betas(_value: Any, given: Given) -> Meaning:
    betas = [given.get("actor.optimizer.beta1", 0.9), given.get("actor.optimizer.beta2", 0.999)]
    return Meaning("taken", ours={"trainer.optimizer.betas": betas})


def _warmup(value: Any, given: Given) -> Meaning:
    if not value:
        return Meaning("not needed")
    if "total_train_steps" not in given:
        return Meaning("left out", "how many steps there will be is not known; set trainer.optimizer.warmup_steps")
    total = int(given["total_train_steps"])
    steps = {"trainer.optimizer.warmup_steps": round(value * total)}
    return Meaning("changed", f"{value} of {total} steps", steps)


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


def _clips(given: Given) -> bool:
    if given.get("actor.use_sapo_loss"):
        return False
    return given.get("actor.ppo_n_minibatches", _MINIBATCHES) != 1 or _ratios(given)[0] == "bypass"


def _clip(value: Any, given: Given) -> Meaning:
    above = {} if "actor.eps_clip_higher" in given else {"algorithm.loss.clip_high": value}
    return Meaning("taken", ours={"algorithm.loss.clip_low": value, **above})


def _upper(cap: Rule) -> Rule:
    """The bound beyond which tokens are left out, or which their weight is cut to."""

    def rule(value: Any, given: Given) -> Meaning:
        if given.get("actor.rejection_sampling.action") != "mask":
            return cap(value, given)
        bounds = {"kind": "mask", "low": given.get("actor.rejection_sampling.lower", 0.0), "high": value}
        return Meaning("taken", ours={f"algorithm.correction.{name}": each for name, each in bounds.items()})

    return rule


def _nodes(value: Any, given: Given) -> Meaning:
    if given.get("scheduler.type") == "slurm":
        return Meaning("taken", ours={"scheduler.slurm.nodes": value})
    is_known = value == 1 or given.get("scheduler.type") == "ray"
    note = "the nodes are those of the cluster" if is_known else "set scheduler.type to ray or slurm"
    return Meaning("not needed" if is_known else "left out", note)


def _kl(value: Any, _given: Given) -> Meaning:
    if not value:
        return Meaning("not needed", "there is no KL penalty")
    return Meaning("changed", "in the loss; there it is taken off the reward", {"algorithm.kl.beta": value})


def _norm(_value: Any, given: Given) -> Meaning:
    baseline = "leave_one_out" if given.get("actor.reward_norm.mean_leave1out") else "mean"
    ours = {
        "algorithm.advantage.baseline": baseline,
        "algorithm.advantage.scale": "std" if _is_scaled(given) else "none",
    }
    if given.get("actor.reward_norm.mean_level") == "group":
        return Meaning("taken", "over the members of a group, by id", ours)
    return Meaning("changed", "GRPO's: over the members of a group, by id", ours)


def _is_scaled(given: Given) -> bool:
    return "actor.reward_norm.mean_level" not in given or "actor.reward_norm.std_level" in given


def _affine(*neutral: float, cancels: Callable[[Given], bool] = lambda _: False) -> Rule:
    """A change of every reward. neutral: values that are none.  cancels: any value does, beside these others."""

    def rule(value: Any, given: Given) -> Meaning:
        if value in neutral or cancels(given):
            return Meaning("not needed", "it cancels out in the advantage")
        return Meaning("left out", "let the agent return the reward as it is to count")

    return rule


NORMS = "actor.*_norm*"
"""Keys where null is a value: nothing is normalised. Elsewhere it says that a key is not set."""
_CAPS = _first(
    "algorithm.correction.cap",
    "actor.rejection_sampling.upper",
    "actor.behav_imp_weight_cap",  # names that it had before
    "actor.behave_imp_weight_cap",
    note="weights above are cut to it, not their tokens left out",
)
_ONCE = "advantages are not normalised once more over the batch"
_UNCLIPPED = "the loss is SAPO's, or with one minibatch the ratio is 1, and nothing is clipped"
_DECOUPLED = "actor.use_decoupled_loss"
_NO_SAPO = "actor.use_sapo_loss is not set"
_COUPLED = f"it acts with {_DECOUPLED} alone"
_TABLE = keys_beside(__file__)
_RULES: Table = {
    "experiment_name": _name,
    "trial_name": _name,
    "tokenizer_path": _as("actor.path", "the tokenizer is the model's own"),
    "workflow": _agent("workflow"),
    "eval_workflow": _agent("eval_workflow"),
    "total_train_epochs": _only(
        _is("total_train_steps", None), to("total_train_epochs"), "total_train_steps says when to stop"
    ),
    "train_dataset.path": _rows("train_dataset.path"),
    "valid_dataset.path": _rows("valid_dataset.path"),
    "rollout.request_timeout": _only(
        lambda given: given.get(_MODE) != "online",
        to("rollout.episode_timeout_s"),
        "sessions that others play end when they are idle",
    ),
    "rollout.consumer_batch_size": _as("train_dataset.batch_size", "a batch is train_dataset.batch_size groups"),
    "rollout.agent.subproc_max_workers": _only(
        _is(_MODE, "subproc"), to("rollout.agent.subproc_max_workers"), f"it acts with {_MODE}=subproc alone"
    ),
    "rollout.agent.session_timeout_seconds": _only(
        _is(_MODE, "online"), to("rollout.episode_timeout_s"), f"it acts with {_MODE}=online alone"
    ),
    **_sampling("gconfig"),
    **_sampling("eval_gconfig"),
    **_first(
        "model.context_length",
        "gconfig.max_tokens",
        "rollout.agent.engine_max_tokens",
        note="prompt and answer together; no more than the model's own",
    ),
    "actor.dtype": Key(
        ("model.dtype",), values=("bfloat16", "float32"), otherwise="model.dtype is bfloat16 or float32"
    ),
    **dict.fromkeys(
        ("actor.use_lora", "actor.lora_rank", "actor.lora_alpha", "actor.target_modules"),
        _only(_is("actor.use_lora"), _adapter, "all weights are trained"),
    ),
    **_first("engine.max_running", "sglang.max_running_requests", "vllm.max_num_seqs"),
    "ref.path": _as("actor.path", "the reference is what training began with"),
    "actor.temperature": _as("gconfig.temperature", "tokens are trained as they were sampled", default=1.0),
    "actor.optimizer.beta1": _betas,
    "actor.optimizer.beta2": _betas,
    "actor.optimizer.warmup_steps_proportion": _warmup,
    "actor.optimizer.lr_scheduler_type": Key(
        ("trainer.optimizer.decay",),
        values=("constant", "linear", "cosine"),
        otherwise="trainer.optimizer.decay is linear or cosine",
    ),
    "actor.use_decoupled_loss": _correction,
    "actor.recompute_logprob": _correction,
    **{name: _only(_is(_DECOUPLED), _upper(rule), _COUPLED) for name, rule in _CAPS.items()},
    "actor.rejection_sampling.level": _only(_is(_DECOUPLED), _TABLE["actor.rejection_sampling.level"], _COUPLED),
    "actor.sapo_tau_pos": _only(_is("actor.use_sapo_loss"), to("algorithm.loss.tau_positive"), _NO_SAPO),
    "actor.sapo_tau_neg": _only(_is("actor.use_sapo_loss"), to("algorithm.loss.tau_negative"), _NO_SAPO),
    "actor.c_clip": _only(_clips, to("algorithm.loss.dual_clip"), _UNCLIPPED),
    "actor.kl_estimator": _only(
        lambda given: given.get("actor.kl_ctl"), _TABLE["actor.kl_estimator"], "there is no KL penalty"
    ),
    "cluster.n_nodes": _nodes,
    "actor.eps_clip": _only(_clips, _clip, _UNCLIPPED),
    "actor.eps_clip_higher": _only(_clips, to("algorithm.loss.clip_high"), _UNCLIPPED),
    "actor.kl_ctl": _kl,
    "actor.reward_norm*": _norm,
    "actor.adv_norm*": Key(values=(None,), note=_ONCE, otherwise=_ONCE),
    "actor.reward_scaling": _affine(1.0, cancels=_is_scaled),
    "actor.reward_bias": _affine(cancels=lambda _: True),
    "actor.reward_clip": _affine(20.0),
    **_first("checkpoint.every_steps", "saver.freq_steps", "checkpointer.freq_steps", "recover.freq_steps"),
    "evaluator.freq_epochs": to(
        "eval.after", convert=lambda _: True, note="after the last step; set eval.every_steps for more"
    ),
}
KEYS: Table = {**_RULES, **_TABLE, **_RULES}
"""Rules come first, and say more than a line of the table. By AReaL's key what it comes to."""
SECTIONS = frozenset(name.partition(".")[0] for name in KEYS if not name.startswith("*"))
"""Of AReaL's own configuration; its users add others for their agents."""
