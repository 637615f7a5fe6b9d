"""`--explain`: the objective of a run as formulas with the run's own numbers, each with its source.

Knows: the rules that settings choose.  Knows not: how they are shown.
Glossary: as in `base`; r the ratio to the old policy, c the correction, w the weight, H the entropy, ref the reference.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any, NamedTuple

from ludus.algorithms.base import Rule
from ludus.algorithms.corrections import counts, parts_of
from ludus.algorithms.demonstrations import DEMONSTRATION_SOURCE
from ludus.algorithms.estimators.gae import GaeSettings
from ludus.algorithms.estimators.whitened import WhitenedSettings
from ludus.algorithms.proximal import PROXIMAL_FORMULA, PROXIMAL_SOURCE
from ludus.algorithms.resolve import algorithm_of
from ludus.algorithms.reward_kl import LARGEST_ESTIMATE
from ludus.algorithms.settings import AlgorithmSettings
from ludus.algorithms.table import CORRECTIONS, ESTIMATORS, LOSSES, NORMALISERS
from ludus.algorithms.value_loss import VALUE_LOSS_SOURCE
from ludus.settings import Choice

_NO_WEIGHTS: Mapping[str, float] = {}
_KL = {"k1": "log pi - log ref", "k2": "(log pi - log ref)^2 / 2", "k3": "q - log q - 1, q = ref / pi"}


class Term(NamedTuple):
    """One letter of the objective."""

    name: str
    formula: str
    source: str


def explain(
    settings: AlgorithmSettings,
    *,
    turn_discount: float,
    value_clip: float | None = None,
    value_weight: float | None = None,
    value_epochs: int | None = None,
    replayed: float = 0.0,
    has_demonstrations: bool = False,
    loss_weights: Mapping[str, float] = _NO_WEIGHTS,
) -> list[Term]:
    """The objective, and what each of its letters stands for.

    turn_discount: from one turn to the next.  value_clip: how far a critic's values may move. None: they are not
    clipped.  value_weight: of the critic's loss in the shared model. None: it is a model of its own.  value_epochs: of
    the critic. None: the policy's.  replayed: share of a batch that is replayed.  has_demonstrations: demonstrations
    join the groups.  loss_weights: of datasets, by name.
    """
    beside = [f" + {settings.kl.beta:g} kl"] if settings.kl else []
    entropy = settings.entropy
    beside += [" - a H" if entropy.target is not None else f" - {entropy.coef:g} H"] if entropy is not None else []
    terms = [
        Term("minimise", f"sum over tokens of w (c loss{''.join(beside)})", ""),
        Term("G", f"reward + {turn_discount:g} * mean of G over the turns that follow", "docs/algorithms.md#returns"),
        _advantage(settings),
        _term("loss", LOSSES, settings.loss),
        Term("r", _ratio(settings), ""),
        *_proximal(settings),
        _correction(settings),
        _weight(settings, loss_weights),
        *_epochs(settings),
    ]
    if settings.kl is not None:
        times = ", times pi / mu" if settings.kl.weighted else ""
        terms.append(Term("kl", _KL.get(settings.kl.estimator, "|log pi - log ref|") + times, "Schulman 2020"))
    if entropy is not None and entropy.target is not None:
        moves = f"+ {entropy.delta:g} after a batch with H <= {entropy.target:g}, else - {entropy.delta:g}"
        bounds = f"in [{entropy.min:g}, {entropy.max:g}], and 0 while H is above {entropy.target:g}"
        terms.append(Term("a", f"{entropy.coef:g}, {moves}, {bounds}", "Skywork-OR1 (arXiv 2505.22312)"))
    terms += _reward(settings)
    terms += _left_out(settings)
    if "values" in algorithm_of(settings).needs.measured:
        terms.append(_critic(value_clip, value_weight, value_epochs))
    if settings.dynamic_sampling:
        flat = ESTIMATORS[settings.advantage.kind].flat.format(**dict(settings.advantage))
        if settings.overlong is not None:
            flat += f", {'with' if settings.dynamic_sampling_metric == 'reward' else 'before'} the length penalty,"
        if settings.dynamic_sampling_metric not in (None, "reward"):
            flat = f"in which all have the same {settings.dynamic_sampling_metric}"
        terms.append(Term("groups", f"those {flat} are replaced", "DAPO (arXiv 2503.14476) sec. 3.2"))
    if has_demonstrations:
        shaped = f"-A p / (p + {settings.demonstrations.gamma:g}), with c = 1, p = pi, of tokens that experts gave"
        terms.append(Term("loss", shaped, DEMONSTRATION_SOURCE))
    if replayed:
        weight = "c" if settings.has_proximal else "r"
        formula = f"up to {replayed:g} of a batch are good ones of earlier batches, whose tokens {weight} weighs"
        terms.append(Term("groups", formula, "ACER (arXiv 1611.01224) sec. 3.2"))
    return terms


def explain_run(settings: AlgorithmSettings, config: Mapping[str, Any]) -> list[Term]:
    """As `explain`, with the values of a run's whole configuration as plain data.

    Raises AttributeError, KeyError, TypeError or ValueError if it is not the data of a configuration.
    """
    rollout, rows, critic = config["rollout"], config.get("train_dataset") or {}, config.get("critic") or {}
    num_steps = min(settings.minibatches, rows.get("batch_size", settings.minibatches))
    return explain(
        settings.model_copy(update={"minibatches": num_steps}),
        turn_discount=float(rollout["agent"]["turn_discount"]),
        value_clip=critic.get("clip_range"),
        value_weight=critic["loss_weight"] if critic.get("model") == "shared" else None,
        value_epochs=critic.get("epochs") if critic.get("model") != "shared" else None,
        replayed=(rollout.get("replay") or {}).get("share", 0.0),
        has_demonstrations=rows.get("demonstrations") is not None,
        loss_weights={name: float(each.get("loss_weight", 1.0)) for name, each in (rows.get("mix") or {}).items()},
    )


def _reward(settings: AlgorithmSettings) -> list[Term]:
    """What is subtracted from the reward."""
    terms: list[Term] = []
    if settings.overlong is not None:
        last, most = settings.overlong.tokens, settings.overlong.max_tokens
        penalty = f"reward - {settings.overlong.penalty_factor:g} * share used of the last {last} of {most} tokens"
        terms.append(Term("reward", penalty, "DAPO (arXiv 2503.14476) eq. 13"))
    lost = settings.reward_kl
    if lost is not None:
        estimate = _KL.get(lost.estimator, "|log pi - log ref|").replace("pi", "mu")
        whose = "d of the token itself" if _pays_alone(settings) else "sum over the turn's tokens of d"
        of_token = f"{whose}, within {LARGEST_ESTIMATE:g} either way; d: {estimate}"
        coef = f"{lost.coef:g}" if lost.target is None else "k"
        terms.append(Term("reward", f"reward - {coef} * {of_token}", "Ziegler et al. (arXiv 1909.08593) sec. 2.1"))
    if lost is not None and lost.target is not None:
        moves = f"times 1 + clip(KL / {lost.target:g} - 1, -0.2, 0.2) episodes / {lost.horizon} after a batch"
        terms.append(Term("k", f"{lost.coef:g}, {moves}", "Ziegler et al. (arXiv 1909.08593) sec. 2.2"))
    return terms


def _pays_alone(settings: AlgorithmSettings) -> bool:
    """Whether each token's KL penalty is charged to the token itself rather than to its whole turn."""
    advantage = settings.advantage
    is_whitened = isinstance(advantage, WhitenedSettings) and advantage.baseline == "none"
    return is_whitened or (isinstance(advantage, GaeSettings) and advantage.unit == "token")


def _advantage(settings: AlgorithmSettings) -> Term:
    task, teacher = _term("A", ESTIMATORS, settings.advantage), settings.distillation
    if teacher is None:
        return task
    gap = "log T - log S" if teacher.divergence == "reverse" else "T / S - 1"
    bounded = gap if teacher.bound is None else f"clip({gap}, -{teacher.bound:g}, {teacher.bound:g})"
    falls = "KL(S || T)" if teacher.divergence == "reverse" else "KL(T || S)"
    whose = f"{teacher.weight:g} ({bounded}), T: the teacher, S: the policy, both at temperature 1: {falls} falls"
    sources = [source for source in (task.source, "MOPD (NeMo-RL; MiMo-V2-Flash)") if source]
    return Term("A", f"{task.formula} + {whose}", "; ".join(sources))


def _critic(clip: float | None, weight: float | None, epochs: int | None) -> Term:
    bounded = "" if clip is None else f", of V and V held within {clip:g} of before, the worse"
    shared = "" if weight is None else f"; {weight:g} of it beside the loss, of the policy's states"
    shared += "" if epochs is None else f"; {epochs} epochs of its own on a batch"
    formula = f"sum over tokens of w (V - (A before whitening + V before))^2 / 2{bounded}{shared}"
    return Term("critic", formula, VALUE_LOSS_SOURCE)


def _left_out(settings: AlgorithmSettings) -> list[Term]:
    """The tokens that are not trained, and those that have no gradient but count in the mean."""
    found: list[tuple[str, str]] = []
    if settings.max_sequence_tokens is not None:
        found.append((f"tokens further than {settings.max_sequence_tokens} down a conversation, prompts counted", ""))
    if settings.mask_truncated_completions:
        found.append(("answers that were cut off at their longest length", "DAPO sec. 3.4"))
    if settings.top_entropy is not None:
        found.append((f"all but {settings.top_entropy:g} of the tokens, by entropy", "arXiv 2506.01939"))
    if settings.off_policy_mask is not None:
        bound = f"A < 0 and mean of log mu - log pi > {settings.off_policy_mask.threshold:g}"
        found.append((f"{bound}, by {settings.off_policy_mask.level}", "arXiv 2512.02556 eq. 9"))
    if settings.second_moment is not None:
        ratio = "log prox / mu" if settings.has_proximal else "log pi / mu"
        bound = f"until the mean of the others' is below {settings.second_moment:g}"
        those = f"of the tokens with A {ratio} > 0 those with the largest ({ratio})^2, {bound}"
        found.append((those, "M2PO (arXiv 2510.01161)"))
    return [Term("left out", formula, source) for formula, source in found]


def _weight(settings: AlgorithmSettings, loss_weights: Mapping[str, float]) -> Term:
    """The weight of a token: the normaliser's, times factors for minibatches and for its dataset."""
    own = _term("w", NORMALISERS, settings.normaliser)
    steps = settings.minibatches
    kept = [", of the tokens that c does not leave out" for each in parts_of(settings.correction) if not counts(each)]
    times = [f" * {steps}: the {steps} optimizer steps weigh as much as {steps} batches"] if steps > 1 else []
    times += [f"; times {weight:g} for rows of {name}" for name, weight in loss_weights.items() if weight != 1]
    return Term("w", "".join([own.formula, *kept[:1], *times]), own.source)


def _correction(settings: AlgorithmSettings) -> Term:
    """The product of all corrections."""
    parts = [_term("c", CORRECTIONS, each) for each in parts_of(settings.correction)]
    formulas = [each.formula for each in parts if each.formula != "1"] or ["1"]
    if not settings.has_proximal:
        formulas = [each.replace("prox", "pi") for each in formulas]
    formula = formulas[0] if len(formulas) == 1 else " * ".join(f"({each})" for each in formulas)
    return Term("c", formula, "; ".join(dict.fromkeys(each.source for each in parts)))


def _proximal(settings: AlgorithmSettings) -> list[Term]:
    is_between = settings.has_proximal and settings.proximal == "interpolate"
    return [Term("prox", PROXIMAL_FORMULA, PROXIMAL_SOURCE)] if is_between else []


def _ratio(settings: AlgorithmSettings) -> str:
    if not settings.has_proximal:
        return "pi / mu, to the policy that sampled"
    if settings.proximal == "reuse":
        return "pi / prox = 1: prox is the policy that each optimizer step begins with"
    if settings.proximal == "interpolate":
        return "pi / prox"
    num_steps = settings.minibatches * settings.epochs
    if num_steps == 1:
        return "pi / prox = 1: one optimizer step on a batch begins where prox is"
    return f"pi / prox, to the weights before the {num_steps} optimizer steps on a batch"


def _epochs(settings: AlgorithmSettings) -> list[Term]:
    """How often a batch is trained on. Empty: once."""
    if settings.epochs == 1:
        return []
    formula = f"{settings.epochs}: a batch's minibatches are trained on so many times, with the same A, prox and mu"
    return [Term("epochs", formula, "PPO (arXiv 1707.06347) alg. 1; mu of DeepSeekMath (arXiv 2402.03300) alg. 1")]


def _term(name: str, rules: Mapping[str, Rule], choice: Choice) -> Term:
    """The rule's formula with the numbers of the settings, followed by set keys that the formula does not show."""
    rule = rules[choice.kind]
    formula = rule.formula_of(choice)
    keys = {key: f"{value:g}" if isinstance(value, float) else str(value) for key, value in choice}
    shown = {field for _, field, _, _ in string.Formatter().parse(formula)}
    more = [f"{key}={keys[key]}" for key in keys if key not in shown and choice.is_set(key) and key != "kind"]
    return Term(name, ", ".join([formula.format(**keys), *more]), rule.source)
