"""From the settings of an algorithm to the algorithm: rules bound to their keys, and composed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from ludus.algorithms.base import Algorithm, LossInputs, LossMetrics, Needs, Rule
from ludus.algorithms.metrics import kl_estimate
from ludus.algorithms.own import OwnAdvantageSettings, OwnLossSettings
from ludus.algorithms.settings import AlgorithmSettings
from ludus.algorithms.table import CORRECTIONS, ESTIMATORS, LOSSES, NORMALISERS
from ludus.settings import Choice

if TYPE_CHECKING:
    from torch import Tensor


def algorithm_of(settings: AlgorithmSettings) -> Algorithm:
    """The algorithm that the settings describe; nothing of the user's is imported yet."""
    parts = (
        (ESTIMATORS, settings.advantage),
        (LOSSES, settings.loss),
        (CORRECTIONS, settings.correction),
        (NORMALISERS, settings.normaliser),
    )
    advantages, loss, correction, weights = (_bound(rules, choice) for rules, choice in parts)
    needs = reduce(or_, (rules[choice.kind].needs(choice) for rules, choice in parts))
    own = (each for each in (settings.advantage, settings.loss))
    return Algorithm(
        name=settings.name,
        needs=needs | Needs(reference=settings.kl is not None),
        advantages=advantages,
        weights=weights,
        loss=partial(
            _objective,
            loss=loss,
            correction=correction,
            beta=None if settings.kl is None else settings.kl.beta,
            metrics=LOSSES[settings.loss.kind].metrics,
        ),
        trains_flat_groups=settings.kl is not None or not LOSSES[settings.loss.kind].uses_advantage,
        imported=tuple(each.path for each in own if isinstance(each, OwnAdvantageSettings | OwnLossSettings)),
    )


def _bound(rules: Mapping[str, Rule], choice: Choice) -> Callable[..., Any]:
    keys = {name: getattr(choice, name) for name in type(choice).model_fields if name != "kind"}
    return partial(rules[choice.kind].function, **keys)


def _objective(
    inputs: LossInputs,
    *,
    loss: Callable[[LossInputs], tuple[Tensor, LossMetrics]],
    correction: Callable[[Tensor | None, Tensor], Tensor | None],
    beta: float | None,
    metrics: Callable[[LossInputs], LossMetrics] | None,
) -> tuple[Tensor, LossMetrics]:
    """sum_i w_i (c_i loss_i + beta kl_i), and what is shown of it.

    Source of kl_i: DeepSeekMath (arXiv 2402.03300) eq. 4.
    """
    loss_N, seen = loss(inputs)
    correction_N = correction(inputs.proximal_logprobs_N, inputs.sampled_logprobs_N)
    if correction_N is not None:
        loss_N = loss_N * correction_N
    if beta is not None:
        assert inputs.reference_logprobs_N is not None, "an algorithm that needs a reference gets its logprobs"
        kl_N = kl_estimate(inputs.logprobs_N, inputs.reference_logprobs_N)
        loss_N = loss_N + beta * kl_N
        seen = {**seen, "kl_reference": kl_N.detach().mean()}
    if metrics is not None:
        seen = {**metrics(inputs), **seen}
    return (inputs.weights_N * loss_N).sum(), seen
