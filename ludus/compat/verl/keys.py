"""verl's names for keys of the configuration that mean the same here, so that its command lines go on working.

Knows: names and plain values.  Knows not: what any key does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ludus.compat import keys
from ludus.compat.keys import Given, Meaning, Rule, Table, fixed, to
from ludus.compat.verl.corrections import LOSS_TYPE, NAMES, correction, is_bypassed
from ludus.errors import ConfigError
from ludus.processes.cards import find_cards
from ludus.runs.settings import TRACKERS
from ludus.settings import leaves, with_value


def _files(dataset: str, value: Any, _given: Given) -> Meaning:
    """One file, or several: as in verl, each has as large a share as it has rows."""
    files = value if isinstance(value, list) else [value]
    if len(files) == 1:
        return Meaning("taken", ours={f"{dataset}.path": files[0]})
    paths = [Path(file).with_suffix("").parts for file in files]
    depths = range(1, max(map(len, paths)) + 1)
    names = next((names for depth in depths if len(set(names := _named(paths, depth))) == len(files)), None)
    if names is None:
        raise ConfigError(f"of the files {', '.join(files)} two are the same; name each of them once")
    return Meaning("taken", ours={f"{dataset}.mix.{name}.path": file for name, file in zip(names, files, strict=True)})


def _named(paths: Sequence[Sequence[str]], depth: int) -> list[str]:
    """A source of rows is called as its file, with so many folders above it as tell the files apart."""
    return [re.sub(r"[^A-Za-z0-9_-]+", "_", "-".join(parts[-depth:])).strip("_-") for parts in paths]


def _top_k(value: Any) -> Any:
    return max(value, 0) if isinstance(value, int) else value


_ROLLOUT = "actor_rollout_ref.rollout."
_ACTOR = "actor_rollout_ref.actor."
_MODEL = "actor_rollout_ref.model."
_POLICY_LOSS = _ACTOR + "policy_loss."
_LOSS_MODE = _POLICY_LOSS + "loss_mode"
_AGGREGATION = _ACTOR + "loss_agg_mode"
_USE_KL, _KL_COEF = _ACTOR + "use_kl_loss", _ACTOR + "kl_loss_coef"
_WITHIN_GROUP = ("grpo", "grpo_vectorized")
_OVERLONG = (
    "reward_model.overlong_buffer",
    "reward.reward_kwargs.overlong_buffer_cfg",
    "reward_model.reward_kwargs.overlong_buffer_cfg",
)
_FILTER = "algorithm.filter_groups."
_SHAPED = ("reward", "seq_reward", "seq_final_reward")
"""Metrics of the filter that are rewards less the length penalty; `score` is without it, and others are metrics."""
_TEACHER = "distillation."
_DISTILLED = _TEACHER + "distillation_loss."
_WEIGHT = _DISTILLED + "distillation_loss_coef"
_DIVERGENCES = {
    **dict.fromkeys((("k1", True), ("kl", True), ("k2", False), ("mse", False)), "reverse"),
    **dict.fromkeys((("k3", False), ("low_var_kl", False)), "forward"),
}
"""By loss_mode and use_policy_gradient the divergence whose gradient that is."""
_IN_REWARD, _PENALTY, _CONTROLLER = "algorithm.use_kl_in_reward", "algorithm.kl_penalty", "algorithm.kl_ctrl."
_LOGGER, _TRACE = "trainer.logger", _ROLLOUT + "trace."
_TRACERS, _HERE = ("mlflow", "trackio"), ("console", "file")
_TABLE = keys.keys_beside(__file__)
_DPPO = ("dppo_tv", "dppo_kl")
_PER_SEQUENCE = ("sapo", "geo_mean")
"""Losses that are a mean over sequences, whatever `loss_agg_mode`."""
_READERS = {
    **dict.fromkeys(
        (_ACTOR + "clip_ratio", _ACTOR + "clip_ratio_low", _ACTOR + "clip_ratio_high"),
        ("vanilla", "gspo", "cispo", "geo_mean", "clip_cov", *_DPPO),
    ),
    _ACTOR + "clip_ratio_c": ("vanilla", *_DPPO),
    **dict.fromkeys((f"{at}tau_{sign}" for at in (_ACTOR, _POLICY_LOSS) for sign in ("pos", "neg")), ("sapo",)),
    **dict.fromkeys((_POLICY_LOSS + "clip_cov_" + name for name in ("ratio", "lb", "ub")), ("clip_cov",)),
    **dict.fromkeys((_POLICY_LOSS + "kl_cov_ratio", _POLICY_LOSS + "ppo_kl_coef"), ("kl_cov",)),
    _POLICY_LOSS + "dro_beta": ("dro",),
}
"""By key of a loss the modes that read it."""


def _loss_mode(given: Given) -> str | None:
    """The mode of the loss. None: a key of Ludus names the loss."""
    if any(name.startswith("algorithm.loss") for name in given):
        return None
    if is_bypassed(given):
        return "vanilla" if given.get(LOSS_TYPE) in (None, "ppo_clip") else "reinforce"
    return str(given.get(_LOSS_MODE, "vanilla"))


def _read_by(modes: Sequence[str], rule: Rule) -> Rule:
    """A key that the losses of these modes read."""
    return keys.only(lambda given: _loss_mode(given) in (None, *modes), rule, f"it is of the loss {' or '.join(modes)}")


_AT_THE_END = ("min_lr", "min_lr_ratio", "min_lr_factor", "lr_min", "lr_decay_steps")


def _at_the_end(name: str) -> Rule:
    """Of the end of a schedule: the learning rate that it falls to, the step at which it gets there."""
    optim = name.rpartition(".")[0]
    schedules = [f"{optim}.{each}" for each in ("lr_scheduler_type", "warmup_style", "lr_decay_style", "decay_type")]
    schedules += ["critic.optimizer.decay" if optim.startswith("critic") else "trainer.optimizer.decay"]
    return keys.only(
        lambda given: any(given.get(each) not in (None, "constant") for each in schedules),
        _TABLE[name],
        "a constant learning rate does not fall",
    )


def _warm_up(name: str, value: Any, given: Given) -> Meaning:
    """verl's warm-up begins at 0."""
    meaning = _TABLE[name](value, given)
    ours = {own.replace("warmup_steps", "warmup_from_zero"): True for own in meaning.ours}
    return replace(meaning, ours={**meaning.ours, **ours})


def _warm_up_share(optim: str, ours: str, value: Any, given: Given) -> Meaning:
    """verl's share of all steps, where no number of them is given."""
    steps, total = given.get(f"{optim}.lr_warmup_steps"), given.get("trainer.total_training_steps")
    if not value or (isinstance(steps, int) and steps > 0):
        return Meaning("not needed", f"{optim}.lr_warmup_steps says it")
    if not isinstance(total, int):
        how = f"set trainer.total_training_steps, or {optim}.lr_warmup_steps"
        return Meaning("left out", f"how many steps there will be is not known: {how}")
    own = {f"{ours}.warmup_steps": int(value * total), f"{ours}.warmup_from_zero": True}
    return Meaning("taken", ours=own if int(value * total) else {})


def _alpha(own: Sequence[str], value: Any, given: Given) -> Meaning:
    """own: keys of the rank."""
    if not any(given.get(name) for name in own) and not any(name.startswith("model.lora") for name in given):
        return Meaning("not needed", "there is no adapter")
    return to("model.lora.alpha")(value, given)


def _kl_term(rule: Rule) -> Rule:
    """A key of the KL term in the loss."""
    return keys.only(
        lambda given: given.get(_USE_KL) and given.get(_KL_COEF) not in (0, 0.0), rule, "there is no KL term"
    )


def _uses_kl(value: Any, given: Given) -> Meaning:
    """verl's coefficient where none is given."""
    if value and given.get(_KL_COEF) is None:
        return Meaning("taken", ours={"algorithm.kl.beta": 0.001})
    return Meaning("not needed", "algorithm.kl.beta sets it")


def _is_of_divergence(given: Given) -> bool:
    """DPPO's bounds are of a divergence, and not of the ratio."""
    return _loss_mode(given) in _DPPO


def _loss(value: Any, given: Given) -> Meaning:
    if is_bypassed(given):
        return Meaning("not needed", "with bypass_mode it is the loss that loss_type names")
    return _TABLE[_LOSS_MODE](value, given)


def _bound(sides: Sequence[str], value: Any, given: Given) -> Meaning:
    """What is given for one side alone comes before what is given for both."""
    own = [side for side in sides if len(sides) == 1 or f"{_ACTOR}clip_ratio_{side}" not in given]
    if _loss_mode(given) == "cispo" and isinstance(value, int | float) and value >= 1:
        own = [side for side in own if side != "low"]  # 1 - value is below every ratio
    prefix = "" if _is_of_divergence(given) else "clip_"
    return to(*(f"algorithm.loss.{prefix}{side}" for side in own))(value, given)


def _dual(value: Any, given: Given) -> Meaning:
    return to(f"algorithm.loss.{'cap' if _is_of_divergence(given) else 'dual_clip'}")(value, given)


def _scale(value: Any, given: Given) -> Meaning:
    if given.get("algorithm.adv_estimator", "grpo") not in _WITHIN_GROUP:
        return Meaning("not needed", "it is of grpo")
    return Meaning("taken", ours={"algorithm.advantage.scale": "std" if value else "none"})


def _of_gae(ours: Sequence[str], value: Any, given: Given) -> Meaning:
    """Discounts of advantages from a critic's values; verl's recurrence knows no turns."""
    estimator = given.get("algorithm.adv_estimator")
    if estimator == "gae":
        return to(*ours)(value, given)
    if estimator is not None and (estimator != "reinforce_plus_plus" or "algorithm.advantage.gamma" not in ours):
        return Meaning("not needed", f"{estimator} does not read it")
    return fixed(1, note="advantages are not made of values; rollout.agent.turn_discount discounts turns")(value, given)


def _aggregated(value: Any, given: Given) -> Meaning:
    """verl divides by the width of a response where it is given no number."""
    if _loss_mode(given) in _PER_SEQUENCE:
        return Meaning("not needed", f"the loss of {_loss_mode(given)} is a mean over sequences")
    meaning, length = _TABLE[_AGGREGATION](value, given), given.get("data.max_response_length")
    if not str(value).endswith("-norm") or length is None or given.get(_ACTOR + "loss_scale_factor"):
        return meaning
    return Meaning("taken", ours={**meaning.ours, "algorithm.normaliser.tokens": length})


def _overlong(value: Any, given: Given) -> Meaning:
    """Of a response whose longest is that of the data, unless it is said."""
    if not any(given.get(f"{at}.enable") for at in _OVERLONG):
        return Meaning("not needed", "overlong answers lose nothing")
    said = (given.get(f"{at}.reward_kwargs.max_resp_len") for at in ("reward", "reward_model"))
    length = next((each for each in said if each is not None), given.get("data.max_response_length"))
    longest = {} if length is None else {"algorithm.overlong.max_tokens": length}
    return Meaning("taken", ours={"algorithm.overlong.tokens": value, **longest})


def _filter(_value: Any, given: Given) -> Meaning:
    """What of a group is compared; verl's own metric where none is given."""
    if not given.get(_FILTER + "enable"):
        return Meaning("taken", ours={"algorithm.dynamic_sampling": False})
    metric = str(given.get(_FILTER + "metric") or "reward")
    ours: dict[str, Any] = {"algorithm.dynamic_sampling": True}
    if metric in _SHAPED:
        if any(given.get(f"{at}.enable") for at in _OVERLONG):
            ours["algorithm.dynamic_sampling_metric"] = "reward"
    elif metric != "score":
        ours["algorithm.dynamic_sampling_metric"] = metric
    return Meaning("taken", ours=ours)


def _minibatches(value: Any, given: Given) -> Meaning:
    size = given.get("data.train_batch_size", given.get("train_dataset.batch_size"))
    if not value or not size or (size > value and size % value):
        return Meaning("left out", f"data.train_batch_size must be given, and a multiple of {value}, got {size}")
    return Meaning("taken", ours={"algorithm.minibatches": max(size // value, 1)})


def _critics_minibatch(value: Any, given: Given) -> Meaning:
    """The critic learns from the policy's minibatches, so that others would be other steps."""
    if value is None or given.get("algorithm.adv_estimator", "gae") != "gae":
        return Meaning("not needed", "there is no critic")
    sizes = (value, given.get(_ACTOR + "ppo_mini_batch_size", 256))  # verl's default
    batch = given.get("data.train_batch_size", given.get("train_dataset.batch_size"))
    if sizes[0] == sizes[1] or (isinstance(batch, int) and batch <= min(sizes)):
        return Meaning("not needed", "the critic learns from the policy's minibatches")
    return Meaning("left out", f"the critic learns from the policy's minibatches, which are of {sizes[1]} rows")


def _folder(value: Any, given: Given) -> Meaning:
    if not value or "${" in str(value) or "run_root" in given:
        return Meaning("not needed", "run_root and name set the run's folder, which has every episode")
    return Meaning("changed", "the run's folder is in it, called by trainer.experiment_name", {"run_root": str(value)})


def _epochs(value: Any, given: Given) -> Meaning:
    if given.get("trainer.total_training_steps") is not None:
        return Meaning("not needed", "trainer.total_training_steps says when it ends")
    return to("total_train_epochs")(value, given)


def _resumed(value: Any, given: Given) -> Meaning:
    """A run goes on in its own folder."""
    if value in (None, False, "auto", "disable") or given.get("trainer.resume_mode") != "resume_path":
        return Meaning("not needed", "`ludus train --resume` and verl.trainer.main_ppo go on in the run's own folder")
    return Meaning(
        "left out", "a run goes on in its own folder; begin with other weights by actor_rollout_ref.model.path"
    )


def _distillation(_value: Any, given: Given) -> Meaning:
    """What falls, and what of it counts; verl's defaults where nothing is given."""
    if not given.get(_TEACHER + "enabled"):
        return Meaning("not needed", "there is no distillation")
    mode, is_advantage = given.get(_DISTILLED + "loss_mode", "k3"), given.get(_DISTILLED + "use_policy_gradient", False)
    divergence = _DIVERGENCES.get((str(mode), bool(is_advantage)))
    if divergence is None:
        there = ", ".join(f"{each} with use_policy_gradient={flag}" for each, flag in _DIVERGENCES)
        return Meaning("left out", f"loss_mode={mode} with use_policy_gradient={is_advantage}: there are {there}")
    ours: dict[str, Any] = {"algorithm.distillation.divergence": divergence}
    if not given.get(_DISTILLED + "use_task_rewards", True):
        return Meaning("taken", ours={**ours, "algorithm.advantage.kind": "none"})
    return Meaning("taken", ours={**ours, "algorithm.distillation.weight": given.get(_WEIGHT, 1.0)})


def _reward_kl(_value: Any, given: Given) -> Meaning:
    """The penalty and its controller; verl's defaults where nothing is given."""
    if not given.get(_IN_REWARD):
        return Meaning("not needed", "no KL is taken off the reward")
    estimate = _TABLE[_PENALTY](given.get(_PENALTY, "kl"), given)
    if estimate.fate == "left out":
        return estimate
    ours = {"coef": given.get(_CONTROLLER + "kl_coef", 0.001)}
    if (kind := given.get(_CONTROLLER + "type", "fixed")) == "adaptive":
        ours["target"] = given.get(_CONTROLLER + "target_kl", 0.1)
        ours["horizon"] = given.get(_CONTROLLER + "horizon", 10000)
    elif kind != "fixed":
        return Meaning("left out", f"kl_ctrl.type={kind!r} is not available here; there are fixed, adaptive")
    own = {f"algorithm.reward_kl.{name}": each for name, each in ours.items()}
    return Meaning("taken", ours={**own, **estimate.ours})


def _clamped(value: Any, given: Given) -> Meaning:
    if value is None or not given.get(_TEACHER + "enabled"):
        return Meaning("not needed", "nothing is clamped")
    if not given.get(_DISTILLED + "use_policy_gradient"):
        return Meaning("left out", "a loss has no bound of its own here; algorithm.distillation.bound is of advantages")
    return Meaning("taken", ours={"algorithm.distillation.bound": value})


def _trackers(_value: Any, given: Given) -> Meaning:
    """Who gets metrics and who gets traces is told in two places; here a tracker gets both, unless nobody traces."""
    named, tracer = given.get(_LOGGER), given.get(_TRACE + "backend")
    if tracer not in (None, *_TRACERS):
        return Meaning("left out", f"{tracer!r} is not available here; there are {', '.join(_TRACERS)}")
    loggers = [named] if isinstance(named, str) else list(named or ())
    trackers = [each for each in TRACKERS if each in (*loggers, tracer)]
    others = [each for each in loggers if each not in (*trackers, *_HERE)]
    note = "a run writes its metrics to its folder and to the console"
    note += f"; {', '.join(others)} is none of {', '.join(TRACKERS)}" if others else ""
    if not trackers:
        return Meaning("not needed", note)
    traces = {} if tracer else {"trackers.traces_per_step": 0}
    return Meaning("changed" if others else "taken", note if others else "", {"trackers.to": trackers, **traces})


def _project(_value: Any, given: Given) -> Meaning:
    """The project of metrics and that of traces are one here."""
    names = [given[key] for key in ("trainer.project_name", _TRACE + "project_name") if given.get(key) is not None]
    if not _trackers(None, given).ours or not names:
        return Meaning("not needed", "no tracker is named")
    return Meaning("taken", ours={"trackers.project": names[0]})


_PLACED = "scheduler places the run's processes, and engine sets how much of a card they use"


def _hybrid(value: Any, given: Given) -> Meaning:
    """The one card that there is, in turns with a vLLM; where there are more, the engine has its own."""
    num_cards = [given.get(f"trainer.{name}") or 1 for name in ("nnodes", "n_gpus_per_node")]
    is_alone = num_cards == [1, 1] and len(find_cards()) == 1 and given.get("model.device") != "cpu"
    if not value or given.get("engine.kind") != "vllm" or not is_alone:
        return Meaning("not needed", _PLACED)
    if "engine.placement" in given:
        return Meaning("not needed", "engine.placement sets it")
    return Meaning("taken", ours={"engine.placement": "shared"})


_RULES: Table = {
    **_TABLE,
    **dict.fromkeys((_LOGGER, _TRACE + "backend"), _trackers),
    **dict.fromkeys(("trainer.project_name", _TRACE + "project_name"), _project),
    "actor_rollout_ref.hybrid_engine": _hybrid,
    _AGGREGATION: _aggregated,
    _USE_KL: _uses_kl,
    **{name: _kl_term(_TABLE[name]) for name in (_KL_COEF, _ACTOR + "kl_loss_type")},
    "trainer.total_epochs": _epochs,
    "trainer.default_local_dir": _folder,
    **{name: partial(_warm_up, name) for name in _TABLE if name.endswith(".lr_warmup_steps")},
    **{
        f"{optim}.lr_warmup_steps_ratio": partial(_warm_up_share, optim, ours)
        for optim, ours in ((_ACTOR + "optim", "trainer.optimizer"), ("critic.optim", "critic.optimizer"))
    },
    # verl counts steps from 1, and trains the policy in the one of this number
    "trainer.critic_warmup": to("critic.warmup_steps", convert=lambda value: value and max(value - 1, 0)),
    "data.train_files": partial(_files, "train_dataset"),
    "data.val_files": partial(_files, "valid_dataset"),
    _ROLLOUT + "top_k": to("gconfig.top_k", convert=_top_k),
    _ROLLOUT + "val_kwargs.top_k": to("eval_gconfig.top_k", convert=_top_k),
    _ACTOR + "ppo_mini_batch_size": _minibatches,
    "critic.ppo_mini_batch_size": _critics_minibatch,
    _ACTOR + "clip_ratio": partial(_bound, ("low", "high")),
    _ACTOR + "clip_ratio_low": partial(_bound, ("low",)),
    _ACTOR + "clip_ratio_high": partial(_bound, ("high",)),
    _ACTOR + "clip_ratio_c": _dual,
    _MODEL + "lora_alpha": partial(_alpha, (_MODEL + "lora_rank",)),
    _MODEL + "lora.alpha": partial(_alpha, (_MODEL + "lora.rank", _MODEL + "lora_rank")),
    _ACTOR + "entropy_coeff": to("algorithm.entropy.coef", convert=lambda value: value or None),
    **dict.fromkeys((f"{at}.len" for at in _OVERLONG), _overlong),
    **dict.fromkeys((_FILTER + "enable", _FILTER + "metric"), _filter),
    "algorithm.norm_adv_by_std_in_grpo": _scale,
    "algorithm.gamma": partial(_of_gae, ("algorithm.advantage.gamma", "rollout.agent.turn_discount")),
    "algorithm.lam": partial(_of_gae, ("algorithm.advantage.lam",)),
    _LOSS_MODE: _loss,
    **dict.fromkeys(NAMES, correction),
    **dict.fromkeys(
        (
            *(_TEACHER + "enabled", _WEIGHT),
            *(_DISTILLED + name for name in ("loss_mode", "use_policy_gradient", "use_task_rewards")),
        ),
        _distillation,
    ),
    _DISTILLED + "loss_max_clamp": _clamped,
    **dict.fromkeys(("trainer.resume_mode", "trainer.resume_from_path"), _resumed),
    **dict.fromkeys(
        (_IN_REWARD, _PENALTY, *(_CONTROLLER + name for name in ("type", "kl_coef", "target_kl", "horizon"))),
        _reward_kl,
    ),
}
KEYS: Table = {
    **_RULES,
    **{name: _read_by(modes, _RULES[name]) for name, modes in _READERS.items()},
    **{name: _at_the_end(name) for name in _TABLE if name.rpartition(".")[2] in _AT_THE_END},
}
_ROOTS = (
    *("actor_rollout_ref", "data", "custom_reward_function", "reward_model", "distillation", "global_profiler"),
    *("ray_kwargs", "transfer_queue", "sandbox_fusion", "skip"),
)
"""Names that nothing here has at the top: a key below them that is not in the table has no counterpart."""


def renamed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with verl's keys under our names.

    Raises ConfigError for one that has no counterpart, whose value cannot be, or that is given under both names.
    """
    data = _with_one_teacher(data)
    ours = keys.renamed(KEYS, data, "verl", _ROOTS)
    loop = default_loop({".".join(map(str, path)): value for path, value in leaves(data)})
    agent = ours.get("rollout", {}).get("agent", {})
    if loop is None or "workflow" in ours or {"default_agent_loop", "agent_loop_config_path"} & agent.keys():
        return ours
    return with_value(ours, ("rollout", "agent", "default_agent_loop"), loop, whole="rollout.agent.default_agent_loop")


def _with_one_teacher(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The only teacher there is under the name that the table has for it, whatever it is called."""
    distillation = data.get("distillation")
    teachers = distillation.get("teacher_models") if isinstance(distillation, Mapping) else None
    if not isinstance(teachers, Mapping) or len(teachers) != 1 or not isinstance(distillation, Mapping):
        return data
    (teacher,) = teachers.values()
    return {**data, "distillation": {**distillation, "teacher_models": {"teacher_model": teacher}}}


def default_loop(given: Given) -> str | None:
    """What plays rows without `agent_name` in verl. None: the keys do not say that rows are played by loops.

    Before loops had names, SGLang's rollout played tools and users wherever there were any.
    """
    if given.get(_ROLLOUT + "mode") == "async":
        return "single_turn_agent" if given.get("data.return_raw_chat") else None
    has_turns = given.get(f"{_ROLLOUT}multi_turn.enable") is not False and any(
        given.get(f"{_ROLLOUT}multi_turn.{name}") for name in ("tool_config_path", "interaction_config_path")
    )
    return "tool_agent" if has_turns else None
