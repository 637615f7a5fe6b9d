"""verl's defaults, for runs that begin from its own command line: those that change what is trained.

Knows: keys, what they mean here.  Knows not: files, command lines.
Invariant: what is given, under verl's name or Ludus's, overrides a default. tests/compat/verl/test_defaults.py compares
the values with verl's own configuration, and names every other key that has another default here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ludus.compat.keys import Given, is_named, meaning_of, nested
from ludus.compat.verl.corrections import is_bypassed
from ludus.compat.verl.keys import KEYS, default_loop
from ludus.settings import leaves, merged, parse_override

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
_LOOP = _ROLLOUT + "agent.default_agent_loop"
_BATCH, _MINIBATCH, _EPOCHS = "data.train_batch_size", _ACTOR + "ppo_mini_batch_size", _ACTOR + "ppo_epochs"
_BOUNDS = [_ACTOR + name for name in ("clip_ratio_low", "clip_ratio_high", "clip_ratio_c")]
OF_TRAINING: Given = {
    _BATCH: 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "actor_rollout_ref.model.path": "~/models/deepseek-llm-7b-chat",
    "actor_rollout_ref.model.lora_alpha": 16,
    _ACTOR + "optim.lr": 1e-6,
    _ACTOR + "optim.weight_decay": 0.01,
    _ACTOR + "optim.betas": [0.9, 0.999],
    _MINIBATCH: 256,
    _ACTOR + "clip_ratio_low": 0.2,
    _ACTOR + "clip_ratio_high": 0.2,
    _ACTOR + "clip_ratio_c": 3.0,
    _ACTOR + "kl_loss_coef": 0.001,
    _ROLLOUT + "n": 1,
    _LOOP: "single_turn_agent",
    "algorithm.adv_estimator": "gae",
    "algorithm.rollout_correction.rollout_is": None,
    "trainer.total_epochs": 30,
}
OF_CRITIC: Given = {"critic.optim.weight_decay": 0.01, "critic.optim.betas": [0.9, 0.999]}
"""Where advantages are made of values."""
OF_EVALUATION: Given = {
    "trainer.val_before_train": True,
    _ROLLOUT + "val_kwargs.temperature": 0,
    _ROLLOUT + "val_kwargs.top_p": 1.0,
    _ROLLOUT + "val_kwargs.top_k": -1,
}
"""Where there are held-out rows."""
DEFAULTS: Given = {**OF_TRAINING, **OF_CRITIC, **OF_EVALUATION}
_ESTIMATOR = "algorithm.adv_estimator"
_DECIDING = ("algorithm.", "workflow", "config_class", "rollout.agent.mode", "eval.")
"""Beginnings of Ludus's keys that decide whether other keys have a meaning; others only replace their own value."""


def with_defaults(values: Mapping[str, Any], settings: Sequence[str] = ()) -> dict[str, Any]:
    """A command line's nested keys, completed with verl's defaults.

    settings: keys of Ludus, `KEY=VALUE`, that will override the configuration.
    """
    given = {".".join(map(str, path)): value for path, value in leaves(values)}
    whole = {**DEFAULTS, **given}
    # by itself: what is given for both sides of a clip is overridden by a given side, but not by a side's default
    meanings = {name: meaning_of(KEYS, name, value, given) for name, value in given.items()}
    named = [name for name, meaning in meanings.items() if meaning is None]
    named += [name for name in (".".join(parse_override(each)[0]) for each in settings) if name.startswith(_DECIDING)]
    ours = {own for meaning in meanings.values() if meaning is not None for own in meaning.ours}
    kept = {}
    for name, default in _applicable(given, named).items():
        meaning = meaning_of(KEYS, name, default, whole)
        assert meaning is not None, f"{name} is no key of verl's"
        if meaning.ours and not any(own in ours or is_named(own, named) for own in meaning.ours):
            kept[tuple(name.split("."))] = default
    return merged(nested(kept), values)


def _applicable(given: Given, named: Collection[str]) -> dict[str, Any]:
    """The defaults that are not given and could have an effect."""
    found = {**OF_TRAINING}
    if default_loop(given) is not None or {"workflow", "config_class", "rollout.agent.mode"} & {*named}:
        del found[_LOOP]  # something else plays rows without `agent_name`
    if _is_one_step(given, named):
        found = {name: value for name, value in found.items() if name not in _BOUNDS}
    if given.get(_ESTIMATOR, "gae") == "gae" and not is_named("algorithm.advantage.kind", named):
        found |= OF_CRITIC
    if any(value and name.startswith(("data.val_files", "valid_dataset.")) for name, value in given.items()):
        is_asked = given.get("trainer.val_before_train", True) or _is_positive(given.get("trainer.test_freq"))
        found |= OF_EVALUATION if is_asked or any(name.startswith("eval.") for name in named) else {}
    return {name: value for name, value in found.items() if name not in given}


def _is_one_step(given: Given, named: Collection[str]) -> bool:
    """Whether a batch is one optimizer step of the policy that began it, so that no ratio could be clipped."""
    deciding = ("algorithm.minibatches", "algorithm.epochs", "algorithm.correction")
    if is_bypassed(given) or any(is_named(each, named) for each in deciding) or given.get(_EPOCHS) not in (None, 1):
        return False
    size = given.get(_BATCH, given.get("train_dataset.batch_size", OF_TRAINING[_BATCH]))
    minibatch = given.get(_MINIBATCH, OF_TRAINING[_MINIBATCH])
    return isinstance(size, int) and isinstance(minibatch, int) and minibatch >= size


def _is_positive(value: Any) -> bool:
    return isinstance(value, int) and value > 0
