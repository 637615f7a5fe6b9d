"""AReaL's YAML becomes a configuration of Ludus, and a report of every key of it.

Knows: keys whose values depend on each other; the table of the others is in `migrate/areal_keys.py`.
Knows not: files, command lines.
Invariants: every key that is set is in the report; what is written loads, as `ludus train` would load it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import yaml

from ludus.compat.areal.keys import HARMLESS, LEFT_OUT, NOT_NEEDED, SAME, SECTIONS
from ludus.compat.importing.interpolate import MISSING, leaves
from ludus.compat.importing.report import Entry, Fate
from ludus.config import Config
from ludus.errors import ConfigError

_FILES = (".jsonl", ".json", ".csv", ".parquet")
_CAPS = ("actor.behav_imp_weight_cap", "actor.behave_imp_weight_cap")
"""Names that the cap had before."""
_RATIOS = ("use_decoupled_loss", "recompute_logprob")
"""Keys of the actor that say which policy ratios are taken to."""
_NO_LIMIT = 10**6
"""AReaL's top_k of 1e8, and whatever else is larger than a vocabulary, keeps all of it."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A configuration as the mapping that is written, and what became of each key."""

    config: Mapping[str, Any]
    entries: tuple[Entry, ...]

    def to_yaml(self) -> str:
        return yaml.safe_dump(dict(self.config), sort_keys=False, allow_unicode=True)


def import_areal(data: Mapping[str, Any]) -> Imported:
    """AReaL's configuration, its references resolved, as one of Ludus.

    Raises ConfigError if a value that would be taken is none that Ludus accepts.
    """
    writer = _Writer(leaves(data))
    _not_in_the_file(writer)
    for step in (_name, _agent, _model, _sampling, _optimizer, _loss, _credit, _data, _when):
        step(writer)
    _the_rest(writer)
    try:
        Config(**writer.config)
    except ConfigError as error:
        raise ConfigError(f"the imported configuration would not load: {error}") from None
    return Imported(writer.config, tuple(writer.entries))


@dataclass
class _Writer:
    """Takes keys off AReaL's configuration, one by one, and writes Ludus's."""

    left: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    given: dict[str, Any] = field(init=False)
    """All that was set, also what has been taken since."""
    older: dict[str, str] = field(init=False)
    """Names that stand in the file, by those of today."""

    def __post_init__(self) -> None:
        # Settings of agents had another name before.
        old = "rollout.openai."
        self.older = {f"rollout.agent.{key.removeprefix(old)}": key for key in self.left if key.startswith(old)}
        self.left |= {key: self.left.pop(before) for key, before in self.older.items()}
        self.given = {key: value for key, value in self.left.items() if value is not None}

    def take(self, key: str) -> Any:
        """The value of `key`, which is then done with. None: it is not set."""
        return self.left.pop(key, None)

    def say(self, key: str, fate: Fate, note: str = "") -> None:
        self.left.pop(key, None)
        self.entries.append(Entry(self.older.get(key, key), fate, note))

    def write(self, key: str, target: str, value: Any, *, note: str = "") -> None:
        """Takes `key` as `target`; `note` says what is different there."""
        self.put(target, value)
        where = "" if target == self.older.get(key, key) else target
        self.say(key, "changed" if note else "taken", ": ".join(filter(None, (where, note))))

    def put(self, target: str, value: Any) -> None:
        *path, last = target.split(".")
        at = self.config
        for name in path:
            at = at.setdefault(name, {})
        at[last] = value


def _not_in_the_file(writer: _Writer) -> None:
    for key, value in list(writer.left.items()):
        if value == MISSING or (isinstance(value, str) and "${" in value):
            writer.say(key, "left out", f"its value {value!r} is not in this file")
            writer.given.pop(key)


def _name(writer: _Writer) -> None:
    experiment, trial = (writer.take(key) for key in ("experiment_name", "trial_name"))
    name = "-".join(str(part) for part in (experiment, trial) if part is not None)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-_")
    if name:
        writer.put("name", name)
        for key in ("experiment_name", "trial_name"):
            if key in writer.given:
                writer.say(key, "taken", f"name: {name}")
    root = writer.take("cluster.fileroot")
    if root is not None:
        writer.write("cluster.fileroot", "run_root", root)
    tokenizer = writer.take("tokenizer_path")
    if tokenizer is not None:
        is_own = tokenizer == writer.given.get("actor.path")
        writer.say("tokenizer_path", "not needed" if is_own else "left out", "the tokenizer is the model's own")


def _agent(writer: _Writer) -> None:
    for key in ("workflow", "eval_workflow"):
        value = writer.take(key)
        if value is None:
            continue
        if key not in Config.model_fields or not isinstance(value, str):
            writer.say(key, "left out", f"pass it in Python: Trainer(config).train({key}=...)")
        elif value.startswith("areal.") and not _is_here(f"ludus.compat.{value}"):
            writer.say(key, "left out", f"there is no ludus.compat.{value}; name an agent of your own")
        elif value.startswith("areal."):
            writer.write(key, key, f"ludus.compat.{value}", note="the same name below ludus.compat")
        else:
            writer.write(key, key, value)
    agents = {"rollout.agent.subproc_max_workers": "subproc", "rollout.agent.session_timeout_seconds": "online"}
    targets = {"subproc": "rollout.agent.subproc_max_workers", "online": "rollout.episode_timeout_s"}
    for key, mode in agents.items():
        value = writer.take(key)
        if value is None:
            continue
        if writer.given.get("rollout.agent.mode") == mode:
            writer.write(key, targets[mode], value)
        else:
            writer.say(key, "not needed", f"it acts with rollout.agent.mode={mode} alone")
    if writer.given.get("rollout.agent.mode") == "online":
        timeout = writer.take("rollout.request_timeout")
        if timeout is not None:
            writer.say("rollout.request_timeout", "not needed", "sessions that others play end when they are idle")
    size = writer.take("rollout.consumer_batch_size")
    if size is not None:
        is_same = size == writer.given.get("train_dataset.batch_size")
        note = "a batch is train_dataset.batch_size groups"
        writer.say("rollout.consumer_batch_size", "not needed" if is_same else "left out", note)


def _is_here(name: str) -> bool:
    module, _, attribute = name.replace(":", ".").rpartition(".")
    try:
        return hasattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError:
        return False


def _model(writer: _Writer) -> None:
    dtype = writer.take("actor.dtype")
    if dtype in ("bfloat16", "float32"):
        writer.write("actor.dtype", "model.dtype", dtype)
    elif dtype is not None:
        writer.say("actor.dtype", "left out", f"{dtype} is not available; model.dtype is bfloat16 or float32")
    adapter = {name: writer.take(f"actor.{name}") for name in ("lora_rank", "lora_alpha", "target_modules")}
    has_adapter = writer.take("actor.use_lora")
    given = {f"actor.{name}" for name, value in adapter.items() if value is not None}
    if has_adapter:
        writer.put("model.lora.rank", adapter["lora_rank"] or 32)  # AReaL's defaults, where they are not set
        writer.put("model.lora.alpha", adapter["lora_alpha"] or 16)
        modules = adapter["target_modules"]
        if modules and list(modules) != ["all-linear"]:
            writer.put("model.lora.target_modules", list(modules))
        for key in sorted({"actor.use_lora", *given}):
            writer.say(key, "taken", "model.lora")
    else:
        for key in sorted({"actor.use_lora", *given} & writer.given.keys()):
            writer.say(key, "not needed", "all weights are trained")
    running = _first(writer, "sglang.max_running_requests", "vllm.max_num_seqs")
    if running is not None:
        writer.write(running[0], "engine.max_running", running[1])
    path = writer.take("ref.path")
    if path is not None:
        is_same = path == writer.given.get("actor.path")
        note = "the reference is what training began with"
        writer.say("ref.path", "not needed" if is_same else "left out", note)


def _sampling(writer: _Writer) -> None:
    for section in ("gconfig", "eval_gconfig"):
        for key, target in SAME.items():
            own = f"{section}.{key.removeprefix('gconfig.')}"
            if section == "eval_gconfig" and key.startswith("gconfig.") and writer.left.get(own) is not None:
                writer.write(own, target.replace("gconfig", section, 1), writer.take(own))
        greedy, top_k = writer.take(f"{section}.greedy"), writer.take(f"{section}.top_k")
        if greedy:
            writer.write(f"{section}.greedy", f"{section}.temperature", 0.0, note="0 is greedy")
            writer.left.pop(f"{section}.temperature", None)
        elif greedy is not None:
            writer.say(f"{section}.greedy", "not needed", "a temperature above 0 samples")
        if top_k is not None:
            keeps_all = top_k < 0 or top_k > _NO_LIMIT
            note = "0 keeps the whole vocabulary" if keeps_all else ""
            writer.write(f"{section}.top_k", f"{section}.top_k", 0 if keeps_all else int(top_k), note=note)
    total = writer.take("gconfig.max_tokens") or writer.given.get("rollout.agent.engine_max_tokens")
    if total is not None:
        key = "gconfig.max_tokens" if "gconfig.max_tokens" in writer.given else "rollout.agent.engine_max_tokens"
        note = "prompt and answer together; no more than the model's own"
        writer.write(key, "model.context_length", int(total), note=note)
    for key in ("rollout.agent.engine_max_tokens", "eval_gconfig.max_tokens"):
        if writer.take(key) is not None:
            writer.say(key, "not needed", "model.context_length says it")
    temperature = writer.take("actor.temperature")
    if temperature is not None:
        is_same = temperature == writer.given.get("gconfig.temperature", 1.0)
        note = "tokens are trained under the distribution they were sampled from"
        writer.say("actor.temperature", "not needed" if is_same else "left out", note)


def _optimizer(writer: _Writer) -> None:
    prefix = "actor.optimizer."
    betas = [writer.take(f"{prefix}{name}") for name in ("beta1", "beta2")]
    if any(beta is not None for beta in betas):
        first, second = (default if beta is None else beta for beta, default in zip(betas, (0.9, 0.999), strict=True))
        writer.put("trainer.optimizer.betas", [first, second])
        for name, beta in zip(("beta1", "beta2"), betas, strict=True):
            if beta is not None:
                writer.say(f"{prefix}{name}", "taken", "trainer.optimizer.betas")
    steps = writer.given.get("total_train_steps")
    total = None if steps is None else int(steps) * int(writer.given.get("actor.ppo_n_minibatches") or 4)
    warmup, decay = writer.take(f"{prefix}warmup_steps_proportion"), writer.take(f"{prefix}lr_scheduler_type")
    if warmup is not None:
        key = f"{prefix}warmup_steps_proportion"
        if not warmup:
            writer.say(key, "not needed")
        elif total is None:
            writer.say(key, "left out", "how many steps there will be is not known; set trainer.optimizer.warmup_steps")
        else:
            target, num_steps = "trainer.optimizer.warmup_steps", round(warmup * total)
            writer.write(key, target, num_steps, note=f"{warmup} of {total} optimizer steps")
    if decay is not None:
        key = f"{prefix}lr_scheduler_type"
        if decay == "constant":
            writer.say(key, "taken", "trainer.optimizer.decay")
        elif decay not in ("linear", "cosine"):
            writer.say(key, "left out", f"{decay} is not available; trainer.optimizer.decay is linear or cosine")
        elif total is None:
            note = "how many steps there will be is not known; set trainer.optimizer.decay and total_steps"
            writer.say(key, "left out", note)
        else:
            writer.put("trainer.optimizer.total_steps", total)
            writer.write(key, "trainer.optimizer.decay", decay, note=f"over {total} optimizer steps")


def _loss(writer: _Writer) -> None:
    if not any(key.startswith("actor.") for key in writer.given):
        return
    clip, clip_high = writer.take("actor.eps_clip"), writer.take("actor.eps_clip_higher")
    cap = _first(writer, "actor.rejection_sampling.upper", *_CAPS)
    is_decoupled, is_recomputed = (writer.take(f"actor.{name}") for name in _RATIOS)
    correction, note = "bypass", "ratios are to the policy that sampled"
    if is_decoupled:
        correction, note = (
            "truncate",
            "ratios are to the policy before the batch, whose weight to the sampler is capped",
        )
    elif is_recomputed:
        correction, note = "none", "ratios are to the policy before the batch"
    if not is_decoupled:
        writer.put("algorithm.correction", correction)
    for name, value in zip(_RATIOS, (is_decoupled, is_recomputed), strict=True):
        if value is not None:
            writer.say(f"actor.{name}", "changed", f"algorithm.correction={correction}: {note}")
    if cap is not None:
        key, value = cap
        if is_decoupled:
            writer.write(
                key, "algorithm.correction.cap", value, note="weights above are cut to it, not their tokens left out"
            )
        else:
            writer.say(key, "not needed", "it acts with actor.use_decoupled_loss alone")
    minibatches = writer.given.get("actor.ppo_n_minibatches", 4)  # AReaL's default
    if "actor.ppo_n_minibatches" not in writer.given:
        writer.put("algorithm.minibatches", minibatches)
    for key, target, value in (
        ("actor.eps_clip", "algorithm.loss.clip_low", clip),
        ("actor.eps_clip_higher", "algorithm.loss.clip_high", clip_high),
    ):
        if value is None:
            continue
        if minibatches == 1 and (is_decoupled or is_recomputed):
            writer.say(key, "not needed", "with one minibatch the ratio is 1, and nothing is clipped")
            continue
        writer.write(key, target, value)
        if key == "actor.eps_clip" and clip_high is None:
            writer.put("algorithm.loss.clip_high", value)
    kl = writer.take("actor.kl_ctl")
    if kl:
        writer.write("actor.kl_ctl", "algorithm.kl.beta", kl, note="in the loss; there it is taken off the reward")
    elif kl is not None:
        writer.say("actor.kl_ctl", "not needed", "there is no KL penalty")


def _credit(writer: _Writer) -> None:
    norm = {key: writer.take(key) for key in list(writer.left) if key.startswith("actor.reward_norm")}
    level = norm.get("actor.reward_norm.mean_level")
    if norm:
        if norm.get("actor.reward_norm.mean_leave1out"):
            writer.put("algorithm.advantage.baseline", "leave_one_out")
        if level is not None and norm.get("actor.reward_norm.std_level") is None:
            writer.put("algorithm.advantage.scale", "none")
        is_grouped = level == "group"
        note = "over the members of a group, by id" if is_grouped else "GRPO's: over the members of a group, by id"
        for key in norm:
            writer.say(key, "taken" if is_grouped else "changed", f"algorithm.advantage: {note}")
    for key in [key for key in writer.left if key.startswith("actor.adv_norm")]:
        note = "advantages are not normalised once more over the batch"
        writer.say(key, "left out" if writer.take(key) is not None else "not needed", note)
    scales = writer.config.get("algorithm", {}).get("advantage", {}).get("scale") != "none"
    affine = {"actor.reward_scaling": 1.0, "actor.reward_bias": 0.0, "actor.reward_clip": 20.0}
    for key, neutral in affine.items():
        value = writer.take(key)
        if value is None:
            continue
        cancels = value == neutral or key == "actor.reward_bias" or (scales and key == "actor.reward_scaling")
        note = "it cancels out in the advantage" if cancels else "let the agent return the reward as it is to count"
        writer.say(key, "not needed" if cancels else "left out", note)


def _data(writer: _Writer) -> None:
    for section in ("train_dataset", "valid_dataset"):
        key = f"{section}.path"
        path = writer.take(key)
        if path is None:
            continue
        if str(path).endswith(_FILES) or ":" in str(path):
            writer.write(key, key, path)
        else:
            note = f"{path} is no file; pass rows in Python, or name 'pkg.mod:function' that returns them"
            writer.say(key, "left out", note)


def _when(writer: _Writer) -> None:
    epochs, steps = writer.take("total_train_epochs"), writer.take("total_train_steps")
    if steps is not None:
        writer.write("total_train_steps", "total_train_steps", steps)
        if epochs is not None:
            writer.say("total_train_epochs", "not needed", "total_train_steps says when to stop")
    elif epochs is not None:
        writer.write("total_train_epochs", "total_train_epochs", epochs)
    saved = _first(writer, "saver.freq_steps", "checkpointer.freq_steps", "recover.freq_steps")
    if saved is not None:
        writer.write(saved[0], "checkpoint.every_steps", saved[1])
    for key in ("saver.freq_epochs", "recover.freq_epochs", "checkpointer.freq_epochs"):
        if writer.take(key) is not None:
            writer.say(key, "left out", "a run is saved by steps, and when it ends; set checkpoint.every_steps")
    if writer.take("evaluator.freq_epochs") is not None:
        writer.write(
            "evaluator.freq_epochs", "eval.after", True, note="after the last step; set eval.every_steps for more"
        )


def _the_rest(writer: _Writer) -> None:
    """Keys that can be said one by one."""
    for key in list(writer.left):
        value = writer.take(key)
        if value is None:
            continue
        if key in SAME and SAME[key].split(".")[0] in Config.model_fields:
            writer.write(key, SAME[key], value)
        else:
            writer.say(key, *_fate_of(key, value))


def _fate_of(key: str, value: Any) -> tuple[Fate, str]:
    for pattern, harmless in HARMLESS.items():
        if fnmatchcase(key, pattern):
            is_harmless = value in harmless.values
            return ("not needed", harmless.note) if is_harmless else ("left out", harmless.otherwise)
    for pattern, note in LEFT_OUT:
        if fnmatchcase(key, pattern):
            return "left out", note
    for pattern, note in NOT_NEEDED:
        if fnmatchcase(key, pattern):
            return "not needed", note
    if key.partition(".")[0] not in SECTIONS:
        return "left out", "AReaL has no such key; what is your agent's own goes into workflow_kwargs"
    return "left out", "Ludus knows no such key"


def _first(writer: _Writer, *keys: str) -> tuple[str, Any] | None:
    """The first of `keys` that is set, with its value; it stays to be taken by `write`."""
    found = [(key, writer.left[key]) for key in keys if writer.left.get(key) is not None]
    return found[0] if found else None
