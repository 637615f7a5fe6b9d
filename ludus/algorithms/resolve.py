"""Composes an algorithm from its settings: the rules that they choose, with their keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from ludus.algorithms.base import (
    Advantages,
    Algorithm,
    GroupReturns,
    LossInputs,
    LossMetrics,
    LossTerms,
    Memory,
    Needs,
    Rule,
)
from ludus.algorithms.corrections import Corrected, product, weights_of_counted
from ludus.algorithms.demonstrations import demonstration_loss
from ludus.algorithms.distillation import add_distillation
from ludus.algorithms.exact import exact
from ludus.algorithms.levels import mean_within
from ludus.algorithms.metrics import bounded_exp, demonstration_metrics, kl_estimate, replay_metrics
from ludus.algorithms.own import OwnAdvantageSettings, OwnLossSettings
from ludus.algorithms.pack import DEMONSTRATED
from ludus.algorithms.proximal import proximal_logprobs
from ludus.algorithms.reward_kl import MEASURED
from ludus.algorithms.settings import AlgorithmSettings
from ludus.algorithms.table import CORRECTIONS, ESTIMATORS, LOSSES, NORMALISERS
from ludus.settings import Choice

if TYPE_CHECKING:
    from torch import Tensor


def algorithm_of(settings: AlgorithmSettings) -> Algorithm:
    """The algorithm that the settings describe. A user's own functions are not imported yet."""
    parts = (
        (ESTIMATORS, settings.advantage),
        (LOSSES, settings.loss),
        (CORRECTIONS, settings.correction),
        (NORMALISERS, settings.normaliser),
    )
    advantages, loss, correction, weights = (_bound(rules, choice) for rules, choice in parts)
    needs = reduce(or_, (rules[choice.kind].needs(choice) for rules, choice in parts))
    if settings.proximal != "recompute":
        needs = replace(needs, proximal=False, ages=needs.proximal and settings.proximal == "interpolate")
    own = (each for each in (settings.advantage, settings.loss))
    return Algorithm(
        name=settings.name,
        needs=needs | _needs_of_terms(settings),
        estimate=partial(_estimate, estimator=advantages, settings=settings),
        is_flat=_is_flat(settings.advantage),
        weights=weights,
        terms=partial(_terms, settings=settings, loss=loss, correction=correction),
        imported=tuple(each.path for each in own if isinstance(each, OwnAdvantageSettings | OwnLossSettings)),
        epochs=settings.epochs,
    )


def _bound(rules: Mapping[str, Rule], choice: Choice) -> Callable[..., Any]:
    return partial(rules[choice.kind].function, **_keys(choice))


def _is_flat(advantage: Choice) -> Callable[[GroupReturns], bool]:
    own = ESTIMATORS[advantage.kind].is_flat
    return (lambda group: group.is_flat) if own is None else partial(own, **_keys(advantage))


def _keys(choice: Choice) -> dict[str, Any]:
    return {name: getattr(choice, name) for name in type(choice).model_fields if name != "kind"}


def _estimate(
    groups: Sequence[GroupReturns], memory: Memory, *, estimator: Callable[..., Any], settings: AlgorithmSettings
) -> tuple[Sequence[Advantages], Memory]:
    """The estimator's advantages, with the teacher's added if there is one; and the new memory."""
    if ESTIMATORS[settings.advantage.kind].remembers:
        found, memory = estimator(groups, memory)
    else:
        found = estimator(groups)
    return found if settings.distillation is None else add_distillation(groups, found, settings.distillation), memory


def _needs_of_terms(settings: AlgorithmSettings) -> Needs:
    """What the terms need that are added to any loss."""
    return Needs(
        reference=settings.kl is not None,
        entropy=settings.entropy is not None,
        teacher=settings.distillation is not None,
        measured=frozenset() if settings.reward_kl is None else MEASURED,
        flat_groups=settings.distillation is not None or bool(settings.kl or settings.entropy or settings.top_entropy),
        minibatch=settings.top_entropy is not None
        or settings.second_moment is not None
        or (settings.off_policy_mask is not None and settings.off_policy_mask.level != "token"),
    )


def _terms(
    inputs: LossInputs,
    *,
    settings: AlgorithmSettings,
    loss: Callable[[LossInputs], tuple[Tensor, LossMetrics]],
    correction: Callable[[LossInputs], Corrected],
) -> LossTerms:
    """w_i (c_i m_i loss_i + beta kl_i - coef H_i) for each token, and its metrics.

    c: the correction; m: 1, or 0 for tokens that the masks of the settings leave out; w: 0 for tokens that the
    correction does not count. Demonstrations have no sampling probability: their loss is `demonstration_loss`, with
    c = m = 1, and metrics count them as on-policy.
    Source of kl_i: DeepSeekMath (arXiv 2402.03300) eq. 4; times the ratio, so that it is unbiased off policy:
    DeepSeek-V3.2 (arXiv 2512.02556) eq. 7.
    """
    is_given_N = None if inputs.origins_N is None else inputs.origins_N == DEMONSTRATED
    if is_given_N is not None:
        begun_N = inputs.logprobs_N if inputs.proximal_logprobs_N is None else inputs.proximal_logprobs_N
        sampled_N = begun_N.detach().where(is_given_N, inputs.sampled_logprobs_N)
        inputs = replace(inputs, sampled_logprobs_N=sampled_N)
    computed = inputs
    if settings.has_proximal:
        inputs = replace(inputs, proximal_logprobs_N=proximal_logprobs(inputs, settings.proximal))
    loss_N, seen = loss(inputs)
    corrected, top_N = correction(inputs), _top_entropy(inputs, settings)
    factor_N = product(corrected.factor_N, top_N, _off_policy(inputs, settings), _second_moment(inputs, settings))
    loss_N = loss_N if factor_N is None else loss_N * factor_N
    counted_N = corrected.counted_N
    if is_given_N is not None:
        loss_N = demonstration_loss(inputs, gamma=settings.demonstrations.gamma).where(is_given_N, loss_N)
        factor_N = None if factor_N is None else factor_N.masked_fill(is_given_N, 1.0)
        counted_N = None if counted_N is None else counted_N.masked_fill(is_given_N, 1.0)
    if counted_N is not None:
        inputs = replace(inputs, weights_N=weights_of_counted(inputs, counted_N, settings.normaliser.kind))
    if settings.kl is not None:
        assert inputs.reference_logprobs_N is not None, "an algorithm that needs a reference gets its logprobs"
        kl_N = kl_estimate(inputs.logprobs_N, inputs.reference_logprobs_N, settings.kl.estimator)
        seen = {**seen, "kl_reference": kl_N.detach()}
        if settings.kl.weighted:
            kl_N = kl_N * bounded_exp(inputs.logprobs_N - inputs.sampled_logprobs_N)
        loss_N = loss_N + settings.kl.beta * kl_N
    if settings.entropy is not None:
        loss_N = loss_N - settings.entropy.coef * _entropy(inputs, settings, top_N)
    seen = {**seen, **_entropy_metrics(inputs, top_N)}
    metrics = LOSSES[settings.loss.kind].metrics
    if metrics is not None:
        seen = {**metrics(computed), **seen}
    seen = {**seen, **replay_metrics(inputs), **demonstration_metrics(inputs)}
    ratio_N = seen.get("ratio_mean")
    if getattr(ratio_N, "shape", None) != loss_N.shape:  # of a loss without one, or a user's own
        ratio_N = bounded_exp((inputs.logprobs_N - inputs.old_logprobs_N).detach())
    assert ratio_N is not None, "given by the loss or made here"
    return LossTerms(inputs.weights_N * loss_N, ratio_N.detach(), inputs.weights_N, factor_N, seen)


def _top_entropy(inputs: LossInputs, settings: AlgorithmSettings) -> Tensor | None:
    """1 for the share of a minibatch's tokens whose entropy is highest, else 0. Source: arXiv 2506.01939 eq. 5."""
    if settings.top_entropy is None:
        return None
    assert inputs.entropies_N is not None, "all tokens of a minibatch come with their entropies"
    entropies_N = inputs.entropies_N.detach()
    # where the quantile is between two tokens the higher one is kept; `Tensor.quantile` takes at most 2^24 numbers
    num_kept = math.floor(settings.top_entropy * (len(entropies_N) - 1)) + 1
    return (entropies_N >= entropies_N.kthvalue(len(entropies_N) - num_kept + 1).values).float()


def _entropy(inputs: LossInputs, settings: AlgorithmSettings, top_N: Tensor | None) -> Tensor:
    """H_i; if only tokens of high entropy are trained, scaled so that its weighted sum is the mean over those alone (as
    in TRL)."""
    assert inputs.entropies_N is not None, "an algorithm that needs entropies gets them"
    if top_N is None:
        return inputs.entropies_N
    alone_N = weights_of_counted(inputs, top_N, settings.normaliser.kind)
    return inputs.entropies_N * (alone_N / inputs.weights_N.masked_fill(inputs.weights_N == 0, 1.0))


def _entropy_metrics(inputs: LossInputs, top_N: Tensor | None) -> LossMetrics:
    """The mean over the tokens of high entropy, by which an adapted bonus goes. Empty if all tokens are trained."""
    if top_N is None or inputs.entropies_N is None:
        return {}
    return {"top_entropy": (inputs.entropies_N.detach() * top_N).sum() / top_N.sum()}


def _off_policy(inputs: LossInputs, settings: AlgorithmSettings) -> Tensor | None:
    """0 for negative advantages where the policy has already moved away, else 1. Source: arXiv 2512.02556 eq. 9."""
    if settings.off_policy_mask is None:
        return None
    gap_N = (inputs.sampled_logprobs_N - inputs.logprobs_N).detach()
    distance_N = mean_within(gap_N, inputs, settings.off_policy_mask.level)
    return ((inputs.advantages_N >= 0) | (distance_N <= settings.off_policy_mask.threshold)).float()


def _second_moment(inputs: LossInputs, settings: AlgorithmSettings) -> Tensor | None:
    """0 for the tokens of a minibatch with the largest squared log-ratio, until the mean over the remaining ones is
    below the bound; tokens with equal ratios are left out together. 1 for all others.

    Only the M tokens that have moved in the direction of their advantage (ratio above 1 and A > 0, or below 1 and
    A < 0) can be left out, and only they count in the mean.
    Source: M2PO (arXiv 2510.01161) alg. 1, with prox / mu as its ratio, or pi / mu with correction bypass.
    """
    if settings.second_moment is None:
        return None
    policy_N = inputs.logprobs_N if inputs.proximal_logprobs_N is None else inputs.proximal_logprobs_N
    log_ratio_N = exact(policy_N.detach() - inputs.sampled_logprobs_N)
    could_be_N, moments_N = exact(inputs.advantages_N) * log_ratio_N > 0, log_ratio_N.square()
    # on the CPU, where a sum always has the same order; the means rise with the moments
    rising_M = moments_N[could_be_N].cpu().sort().values
    means_M = rising_M.cumsum(0) / rising_M.new_ones(rising_M.shape).cumsum(0)
    left_out_M = rising_M[means_M >= settings.second_moment]
    smallest = float(left_out_M[0]) if len(left_out_M) else math.inf
    return (~could_be_N | (moments_N < smallest)).float().to(inputs.advantages_N.device)
