"""Translates the keys of AReaL's configuration: rules for keys that depend on others, and a table for the rest.

Knows: AReaL's keys and defaults, and Ludus's keys.  Knows not: files, reports, former names of keys.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial
from typing import Any

from ludus.compat.areal import norms
from ludus.compat.areal.corrections import OF_DECOUPLED, correction, default_correction, is_bypassed
from ludus.compat.keys import Given, Meaning, Table, fixed, is_named, keys_beside, meaning_of, only, to
from ludus.compat.names import here
from ludus.errors import UserError
from ludus.import_strings import import_object

_FILES = (".jsonl", ".json", ".csv", ".parquet")
_NO_LIMIT = 10**6
"""Values of top_k above this, such as AReaL's default of 1e8, keep the whole vocabulary."""
DEFAULTS: Given = {
    "gconfig.n_samples": 1,
    "train_dataset.batch_size": 1,
    "rollout.request_timeout": 3600,
    "rollout.agent.session_timeout_seconds": 3600,
    "actor.ppo_n_minibatches": 4,
    norms.REWARDS: None,
    norms.ADVANTAGES: None,
}
OF_OPTIMIZER: Given = {"lr": 0.001, "weight_decay": 0.01, "beta1": 0.9, "beta2": 0.999}
OF_REFERENCE: Given = {"actor.kl_ctl": 0.1}
"""These three: those of AReaL's defaults that change what is trained."""
STEPS = "steps of an epoch"
"""Not a key of AReaL's: their number, where the rows are known."""
_SAVED_STEPS, _SAVED_EPOCHS = (
    [f"{each}.freq_{unit}" for each in ("saver", "recover", "checkpointer")] for unit in ("steps", "epochs")
)


# ---- the run and its agents


def _name(_value: Any, given: Given) -> Meaning:
    parts = [str(given[key]) for key in ("experiment_name", "trial_name") if key in given]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts)).strip(".-_")
    return Meaning("taken", name, {"name": name}) if name else Meaning("left out", "no folder can be called so")


def _agent(key: str, value: Any, _given: Given) -> Meaning:
    if not isinstance(value, str):
        return Meaning("left out", f"pass it in Python: Trainer(config).train({key}=...)")
    if not value.startswith("areal."):
        return Meaning("taken", ours={key: value})
    try:
        import_object(own := here(value))
    except (UserError, ModuleNotFoundError):
        return Meaning("left out", f"there is no {own}; name an agent of your own")
    return Meaning("changed", "the same name below ludus.compat", {key: own})


def _rows(key: str, value: Any, _given: Given) -> Meaning:
    if str(value).endswith(_FILES) or ":" in str(value):
        return Meaning("taken", ours={key: value})
    note = f"{value} is no file; pass rows in Python, or name 'pkg.mod:function' that returns them"
    return Meaning("left out", note)


# ---- the model and how it is sampled


def _adapter(_value: Any, given: Given) -> Meaning:
    """`use_lora` and its options, with AReaL's defaults for those that are not set."""
    ours = {"rank": given.get("actor.lora_rank") or 32, "alpha": given.get("actor.lora_alpha") or 16}
    modules = list(given.get("actor.target_modules") or ["all-linear"])
    ours |= {} if modules == ["all-linear"] else {"target_modules": modules}
    return Meaning("taken", ours={f"model.lora.{name}": of_adapter for name, of_adapter in ours.items()})


def _top_k(value: Any) -> int:
    return int(value) if 0 <= value <= _NO_LIMIT else 0


# ---- the optimizer


def _betas(whose: str, ours: str, _value: Any, given: Given) -> Meaning:
    betas = [given.get(f"{whose}.optimizer.beta1", 0.9), given.get(f"{whose}.optimizer.beta2", 0.999)]
    return Meaning("taken", ours={f"{ours}.betas": betas})


def _warmup(ours: str, value: Any, given: Given) -> Meaning:
    if not value:
        return Meaning("not needed")
    if "total_train_steps" not in given and STEPS not in given:
        return Meaning("left out", f"how many steps there will be is not known; set {ours}.warmup_steps")
    total = int(given.get("total_train_steps") or given.get("total_train_epochs", 1) * given[STEPS])
    if not (steps := int(value * total)):
        return Meaning("not needed", f"{value} of {total} steps is none")
    return Meaning(
        "changed", f"{value} of {total} steps", {f"{ours}.warmup_steps": steps, f"{ours}.warmup_from_zero": True}
    )


# ---- what happens once an epoch


def steps_of_epoch(given: Given, num_rows: int) -> int:
    """AReaL leaves out the rest of the rows that is no batch."""
    return max(1, num_rows // int(given.get("train_dataset.batch_size", 1)))


def _evaluated(value: Any, given: Given) -> Meaning:
    if not value:
        return Meaning("not needed")
    if STEPS not in given or "evaluator.freq_steps" in given:
        return Meaning("changed", "after the last step; set eval.every_steps for more", {"eval.after": True})
    steps = value * given[STEPS]
    return Meaning("taken", f"{given[STEPS]} steps each", {"eval.every_steps": steps, "eval.after": True})


def _saved(name: str, value: Any, given: Given) -> Meaning:
    if not value:
        return Meaning("not needed")
    first = next(each for each in (*_SAVED_STEPS, *_SAVED_EPOCHS) if given.get(each))
    if first != name:
        return Meaning("not needed", f"{first} says it")
    if STEPS not in given:
        return Meaning("left out", "a run is saved by steps, and when it ends; set checkpoint.every_steps")
    return Meaning("taken", f"{given[STEPS]} steps each", {"checkpoint.every_steps": value * given[STEPS]})


# ---- loss and credit


def implied(given: Given) -> dict[str, Any]:
    """AReaL's keys with their defaults that are not given, and change what is trained. Empty without an actor: a
    configuration of Ludus's keys has Ludus's defaults."""
    if not _has_actor(given):
        return {}
    found = {**DEFAULTS}
    for whose in _OPTIMIZERS:
        if any(key.startswith(f"{whose}.optimizer.") for key in given):
            found |= {f"{whose}.optimizer.{name}": value for name, value in OF_OPTIMIZER.items()}
    if any(key.startswith("ref.") for key in given):
        found |= OF_REFERENCE
    return {key: value for key, value in found.items() if key not in given}


def defaults(given: Given, keys: Given, beside: Collection[str]) -> dict[str, Any]:
    """Keys of Ludus for AReaL's behaviour by default.

    keys: those that are `implied`, which `given` has too.  beside: names of Ludus's keys that come before them.
    """
    if not _has_actor(given):
        return {}
    ours = {**default_correction(given), **(_gae(given) if _has_critic(given) else {})}
    for key, value in keys.items():
        meaning = meaning_of(KEYS, key, value, given)
        assert meaning is not None, f"{key} is no key of AReaL's"
        ours |= meaning.ours
    return {own: value for own, value in ours.items() if not is_named(own, beside)}


def _has_actor(given: Given) -> bool:
    return any(key.startswith("actor.") for key in given)


def _is_decoupled(given: Given) -> bool:
    return bool(given.get("actor.use_decoupled_loss"))


def _has_critic(given: Given) -> bool:
    """Whether the section is present: AReaL's trainer then uses a critic instead of group baselines."""
    return any(key.startswith("critic.") for key in given)


def _gae(given: Given) -> dict[str, Any]:
    """Settings for advantages from a critic; AReaL discounts per trained token, across turns."""
    discount = given.get("actor.discount", 1.0)
    ours = {
        "algorithm.advantage.kind": "gae",
        "algorithm.advantage.lam": given.get("actor.gae_lambda", 1.0),
        "algorithm.advantage.gamma": discount,
        "algorithm.advantage.whiten": norms.is_whitened(given),
    }
    return ours if discount == 1 or "rollout.agent.turn_discount" in given else {**ours, _TURNS: discount}


def _of_gae(ours: Collection[str], value: Any, given: Given) -> Meaning:
    if not _has_critic(given):
        return fixed(1, otherwise="it is of a critic's values here; rollout.agent.turn_discount discounts turns")(
            value, given
        )
    return Meaning("taken", ours={key: own for key, own in _gae(given).items() if key in ours})


def _whitening(value: Any, given: Given) -> Meaning:
    if _has_critic(given):
        meaning = norms.of_advantages(value, given)
        whitens = {"algorithm.advantage.whiten": norms.is_whitened(given)}
        return meaning if meaning.fate == "left out" else Meaning("taken", ours=whitens)
    return _NO_TASK if _is_without_task(given) else norms.of_advantages(value, given)


def _clips(given: Given) -> bool:
    if given.get("actor.use_sapo_loss"):
        return False
    if is_bypassed(given) or given.get("actor.ppo_n_minibatches") != 1:
        return True
    # an interpolation of sampled and trained logprobs, so that ratios are not 1 even in the first step
    return bool(given.get("actor.use_decoupled_loss")) and given.get("actor.prox_logp_method") == "loglinear"


def _clip(value: Any, given: Given) -> Meaning:
    above = {} if "actor.eps_clip_higher" in given else {"algorithm.loss.clip_high": value}
    return Meaning("taken", ours={"algorithm.loss.clip_low": value, **above})


_OF_TASK = "teacher.rl_loss_weight"
_NO_TASK = Meaning("not needed", "teacher.rl_loss_weight is 0")
_OF_TEACHER = ("teacher.path", "teacher.train.path", "teacher.rl_loss_weight", "teacher.distill_loss_weight")


def _teacher(_value: Any, given: Given) -> Meaning:
    """The teacher's term of the loss, in addition to the task's, with AReaL's defaults."""
    path = given.get("teacher.path") or given.get("teacher.train.path")
    if not path:
        return Meaning("not needed", "there is no teacher")
    task, teacher = given.get("teacher.rl_loss_weight", 1.0), given.get("teacher.distill_loss_weight", 0.005)
    ours = {"teacher.kind": "model", "teacher.path": path}
    if task == 0:
        return Meaning(
            "taken", ours={**ours, "algorithm.distillation.weight": teacher, "algorithm.advantage.kind": "none"}
        )
    note = "the policy moves towards the teacher; there the gradient of the joint loss does not depend on the teacher"
    return Meaning("changed", note, {**ours, "algorithm.distillation.weight": teacher / task})


def _nodes(value: Any, given: Given) -> Meaning:
    if given.get("scheduler.type") == "slurm":
        return Meaning("taken", ours={"scheduler.slurm.nodes": value})
    is_known = value == 1 or given.get("scheduler.type") == "ray"
    note = "the nodes are those of the cluster" if is_known else "set scheduler.type to ray or slurm"
    return Meaning("not needed" if is_known else "left out", note)


def _norm(value: Any, given: Given) -> Meaning:
    if _has_critic(given):
        return fixed(None, otherwise="a critic's values are the baseline, and rewards are taken as they are")(
            value, given
        )
    return _NO_TASK if _is_without_task(given) else norms.of_rewards(value, given)


def _is_without_task(given: Given) -> bool:
    return bool(given.get("teacher.path") or given.get("teacher.train.path")) and given.get(_OF_TASK, 1.0) == 0


NORMS = "actor.*_norm*"
"""Keys for which null is a value (no normalisation). For other keys it means that the key is not set."""
_TURNS = "rollout.agent.turn_discount"
_UNCLIPPED = "the loss is SAPO's, or with one minibatch the ratio is 1, and nothing is clipped"
_REWARD = "let the agent return the final reward"
_CANCELS = "it cancels out in the advantage"
_NOT_DECOUPLED = "it has an effect only with actor.use_decoupled_loss"
_OPTIMIZERS = {"actor": "trainer.optimizer", "critic": "critic.optimizer"}
_STATS, _LOGGERS = "stats_logger.", ("wandb.mode", "trackio.mode", "tensorboard.path")
_ADAPTER = ("actor.use_lora", "actor.lora_rank", "actor.lora_alpha", "actor.target_modules")


def _trackers(_value: Any, given: Given) -> Meaning:
    """The trackers that are not disabled; TensorBoard is enabled by its folder."""
    modes = {name: given.get(f"{_STATS}{name}.mode") or "disabled" for name in ("wandb", "trackio")}
    names = [name for name, mode in modes.items() if mode != "disabled"]
    ours: dict[str, Any] = {"trackers.wandb.mode": modes["wandb"]} if modes["wandb"] in ("online", "offline") else {}
    folder = given.get(f"{_STATS}tensorboard.path")
    if folder:
        names.append("tensorboard")
        ours["trackers.tensorboard.folder"] = folder
    if not names:
        return Meaning("not needed", "metrics are in metrics.jsonl: `ludus report`")
    # AReaL's loggers take metrics alone.
    return Meaning("taken", ours={"trackers.to": names, "trackers.traces_per_step": 0, **ours})


KEYS: Table = keys_beside(
    __file__,
    {
        **dict.fromkeys((f"{_STATS}{name}" for name in _LOGGERS), _trackers),
        **dict.fromkeys(("experiment_name", "trial_name"), _name),
        **{name: partial(_agent, name) for name in ("workflow", "eval_workflow")},
        **{name: partial(_rows, name) for name in ("train_dataset.path", "valid_dataset.path")},
        **{name: to(name, convert=_top_k) for name in ("gconfig.top_k", "eval_gconfig.top_k")},
        **dict.fromkeys(_ADAPTER, _adapter),
        **{
            f"{whose}.optimizer.{beta}": partial(_betas, whose, ours)
            for whose, ours in _OPTIMIZERS.items()
            for beta in ("beta1", "beta2")
        },
        **{f"{whose}.optimizer.warmup_steps_proportion": partial(_warmup, ours) for whose, ours in _OPTIMIZERS.items()},
        "actor.gae_lambda": partial(_of_gae, ("algorithm.advantage.lam",)),
        "actor.discount": partial(_of_gae, ("algorithm.advantage.gamma", _TURNS)),
        **dict.fromkeys(("actor.use_decoupled_loss", "actor.recompute_logprob"), correction),
        **dict.fromkeys(OF_DECOUPLED, only(_is_decoupled, correction, _NOT_DECOUPLED)),
        "cluster.n_nodes": _nodes,
        **dict.fromkeys(_OF_TEACHER, _teacher),
        "actor.c_clip": only(_clips, to("algorithm.loss.dual_clip"), _UNCLIPPED),
        "actor.eps_clip": only(_clips, _clip, _UNCLIPPED),
        "actor.eps_clip_higher": only(_clips, to("algorithm.loss.clip_high"), _UNCLIPPED),
        **dict.fromkeys((norms.REWARDS, f"{norms.REWARDS}.*"), _norm),
        **dict.fromkeys((norms.ADVANTAGES, f"{norms.ADVANTAGES}.*"), _whitening),
        "actor.reward_scaling": only(
            lambda given: not norms.cancels_factor(given) or _has_critic(given),
            fixed(1.0, note=_CANCELS, otherwise=_REWARD),
            _CANCELS,
        ),
        "actor.reward_bias": only(
            lambda given: not norms.cancels_summand(given) or _has_critic(given),
            fixed(0.0, note=_CANCELS, otherwise=_REWARD),
            _CANCELS,
        ),
        "evaluator.freq_epochs": _evaluated,
        **{name: partial(_saved, name) for name in _SAVED_EPOCHS},
    },
)
"""The translation of each key of AReaL."""
SECTIONS = frozenset(name.partition(".")[0] for name in KEYS if not name.startswith("*"))
"""Sections of AReaL's own configuration; users may add others for their agents."""
