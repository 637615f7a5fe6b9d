"""verl's names for keys of the configuration that mean the same here, so that its command lines go on working.

Knows: names and plain values.  Knows not: what any key does.
Invariant: a key that is given becomes ours, does nothing because its value is what happens here anyway, or is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.errors import ConfigError

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Renamed:
    """A key of verl's, and ours with the same meaning."""

    to: tuple[str, ...]
    """More than one: all get the value."""
    convert: Convert = lambda value: value
    """None as its result: the key is as if it had not been given."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A key of verl's whose value is given here."""

    value: Any
    because: str


def _one_file(value: Any) -> Any:
    if isinstance(value, list):
        if len(value) != 1:
            raise ConfigError(f"{len(value)} files of rows cannot be given; write them into one")
        return value[0]
    return value


def _renamed(*to: str, convert: Convert = lambda value: value) -> Renamed:
    return Renamed(to, convert)


def _if_positive(value: Any) -> Any:
    """verl switches off what is counted with -1."""
    return value if isinstance(value, int) and value > 0 else None


def _top_k(value: Any) -> Any:
    return max(value, 0) if isinstance(value, int) else value


def _one_of(**kinds: str) -> Convert:
    """Ours by verl's name; names that have no counterpart are refused."""

    def convert(value: Any) -> Any:
        if value not in kinds:
            raise ConfigError(f"{value!r} is not available here; there are {', '.join(kinds)}")
        return kinds[value]

    return convert


_ROLLOUT = "actor_rollout_ref.rollout."
_ACTOR = "actor_rollout_ref.actor."
_KEYS: Mapping[str, Renamed | Fixed] = {
    "data.train_files": _renamed("train_dataset.path", convert=_one_file),
    "data.val_files": _renamed("valid_dataset.path", convert=_one_file),
    "data.train_batch_size": _renamed("train_dataset.batch_size"),
    "data.val_max_samples": _renamed("valid_dataset.max_rows", convert=_if_positive),
    "data.shuffle": _renamed("train_dataset.shuffle"),
    "data.seed": _renamed("seed"),
    "data.max_prompt_length": _renamed("rollout.prompt_length"),
    "data.max_response_length": _renamed("rollout.response_length"),
    "data.return_raw_chat": Fixed(True, "agent loops always get the messages"),
    "actor_rollout_ref.model.path": _renamed("model.path"),
    "actor_rollout_ref.model.custom_chat_template": _renamed("model.chat_template"),
    "actor_rollout_ref.model.lora_rank": _renamed("model.lora.rank", convert=_if_positive),
    "actor_rollout_ref.model.lora_alpha": _renamed("model.lora.alpha"),
    "actor_rollout_ref.model.enable_gradient_checkpointing": _renamed("trainer.activation_checkpointing"),
    _ROLLOUT + "mode": Fixed("async", "the model is always served beside the agents"),
    _ROLLOUT + "multi_turn.enable": Fixed(True, "the row's loop says whether there are turns"),
    _ROLLOUT + "calculate_log_probs": Fixed(True, "logprobs are always recorded"),
    _ROLLOUT + "trace.token2text": Fixed(False, "traces show text in any case"),
    _ROLLOUT + "n": _renamed("gconfig.n_samples"),
    _ROLLOUT + "temperature": _renamed("gconfig.temperature"),
    _ROLLOUT + "top_p": _renamed("gconfig.top_p"),
    _ROLLOUT + "top_k": _renamed("gconfig.top_k", convert=_top_k),
    _ROLLOUT + "prompt_length": _renamed("rollout.prompt_length"),
    _ROLLOUT + "response_length": _renamed("rollout.response_length"),
    _ROLLOUT + "max_model_len": _renamed("model.context_length"),
    _ROLLOUT + "val_kwargs.n": _renamed("eval_gconfig.n_samples"),
    _ROLLOUT + "val_kwargs.temperature": _renamed("eval_gconfig.temperature"),
    _ROLLOUT + "val_kwargs.top_p": _renamed("eval_gconfig.top_p"),
    _ROLLOUT + "val_kwargs.top_k": _renamed("eval_gconfig.top_k", convert=_top_k),
    _ACTOR + "optim.lr": _renamed("trainer.optimizer.lr"),
    _ACTOR + "optim.weight_decay": _renamed("trainer.optimizer.weight_decay"),
    _ACTOR + "optim.lr_warmup_steps": _renamed("trainer.optimizer.warmup_steps", convert=_if_positive),
    _ACTOR + "grad_clip": _renamed("trainer.optimizer.max_grad_norm"),
    _ACTOR + "clip_ratio": _renamed("algorithm.loss.clip_low", "algorithm.loss.clip_high"),
    _ACTOR + "clip_ratio_low": _renamed("algorithm.loss.clip_low"),
    _ACTOR + "clip_ratio_high": _renamed("algorithm.loss.clip_high"),
    _ACTOR + "policy_loss.loss_mode": _renamed("algorithm.loss.kind", convert=_one_of(vanilla="clip", cispo="cispo")),
    "algorithm.adv_estimator": _renamed("algorithm.name", convert=_one_of(grpo="grpo", rloo="rloo")),
    "algorithm.filter_groups.enable": _renamed("algorithm.dynamic_sampling"),
    "trainer.total_epochs": _renamed("total_train_epochs"),
    "trainer.total_training_steps": _renamed("total_train_steps"),
    "trainer.experiment_name": _renamed("name"),
    "trainer.test_freq": _renamed("eval.every_steps", convert=_if_positive),
    "trainer.val_before_train": _renamed("eval.before"),
    "trainer.save_freq": _renamed("checkpoint.every_steps", convert=_if_positive),
    "trainer.max_actor_ckpt_to_keep": _renamed("checkpoint.keep"),
}
_BRANCHES: Mapping[str, str] = {
    _ROLLOUT + "multi_turn.": "rollout.multi_turn.",
    _ROLLOUT + "agent.": "rollout.agent.",
    _ROLLOUT + "trace.": "trace.",
    "custom_reward_function.": "reward.custom_reward_function.",
}
"""Whatever stands below the first stands below the second here, under the same name."""
_FOREIGN = ("actor_rollout_ref", "data", "custom_reward_function", "critic", "reward_model")
"""Names that nothing here has at the top: a key below them that is not in the table has no counterpart."""


def renamed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with verl's keys under our names.

    Raises ConfigError for one that has no counterpart, whose value cannot be, or that is given under both names.
    """
    found = {path: value for path, value in _leaves(data) if _is_verls(path)}
    if not found:
        return dict(data)
    if foreign := [path for path in found if path not in _KEYS and not path.startswith(tuple(_BRANCHES))]:
        raise _no_counterpart(foreign)
    tree = _without(data, found)
    for path, value in found.items():
        for target, given in _targets(path, value):
            _put(tree, target, given, path)
    return tree


def table() -> list[tuple[str, str]]:
    """verl's key and what it is here, in the order of the alphabet; a branch ends in `*`."""
    rows = [(f"{old}*", f"{new}*") for old, new in _BRANCHES.items()]
    for path, entry in _KEYS.items():
        meaning = " and ".join(entry.to) if isinstance(entry, Renamed) else f"must be {entry.value!r}: {entry.because}"
        rows.append((path, meaning))
    return sorted(rows)


def _is_verls(path: str) -> bool:
    return path in _KEYS or path.partition(".")[0] in _FOREIGN


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value


def _targets(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    entry = _KEYS.get(path)
    if isinstance(entry, Fixed):
        if value != entry.value:
            raise ConfigError(f"{path}={value!r} is not possible: it is {entry.value!r} here, as {entry.because}")
        return
    if isinstance(entry, Renamed):
        given = entry.convert(value)
        if given is not None:
            yield from ((target, given) for target in entry.to)
        return
    for old, new in _BRANCHES.items():
        if path.startswith(old):
            yield new + path.removeprefix(old), value
            return


def _no_counterpart(paths: Sequence[str]) -> ConfigError:
    """All of them at once: command lines of verl are long."""
    best = difflib.get_close_matches(paths[0], _KEYS, n=1, cutoff=0.8)
    hint = f" (did you mean {best[0]!r}?)" if best else ""
    return ConfigError(
        f"keys of verl that have no counterpart here: {', '.join(paths)}{hint}; leave them out. Those that have one "
        "are in docs/coming-from-verl.md"
    )


def _without(tree: Mapping[str, Any], paths: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The tree without these leaves, and without branches that held nothing else."""
    left: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{above}{key}"
        if path in paths:
            continue
        if isinstance(value, Mapping) and value:
            value = _without(value, paths, f"{path}.")
            if not value:
                continue
        left[key] = value
    return left


def _put(tree: dict[str, Any], path: str, value: Any, source: str) -> None:
    *branches, leaf = path.split(".")
    at = tree
    for name in branches:
        below = at.setdefault(name, {})
        if not isinstance(below, dict):
            raise ConfigError(f"{source} is {path} here, and {name} holds the value {below!r}")
        at = below
    if leaf in at and at[leaf] != value:
        raise ConfigError(f"{source}={value!r} is {path} here, which is given as {at[leaf]!r} too; remove one of them")
    at[leaf] = value
