"""Every loss of the table on four tokens of two sequences: its value and gradient by the paper's formula, in floats."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ludus.algorithms import AlgorithmSettings, LossInputs, algorithm_of
from ludus.algorithms.table import LOSSES
from ludus.errors import ConfigError

NOW, OLD = [0.6, 0.2, 0.5, 0.9], [0.4, 0.3, 0.1, 0.85]
ADVANTAGES = [1.0, 1.0, -2.0, -2.0]
EPISODES = [0, 0, 1, 1]
WEIGHTS = [0.25, 0.25, 0.25, 0.25]
RATIOS = [now / old for now, old in zip(NOW, OLD, strict=True)]


def of_sequence(values: list[float], reduce: Callable[[list[float]], float]) -> list[float]:
    return [reduce([v for v, e in zip(values, EPISODES, strict=True) if e == own]) for own in EPISODES]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def clipped(ratios: list[float], low: float = 0.8, high: float = 1.2, dual: float = math.inf) -> list[float]:
    losses = [-min(r * a, clip(r, low, high) * a) for r, a in zip(ratios, ADVANTAGES, strict=True)]
    return [min(loss, -dual * a) if a < 0 else loss for loss, a in zip(losses, ADVANTAGES, strict=True)]


def each(function: Callable[[float, float], float], ratios: list[float] = RATIOS) -> list[float]:
    return [function(r, a) for r, a in zip(ratios, ADVANTAGES, strict=True)]


def gate(r: float, a: float) -> float:
    tau = 1.0 if a > 0 else 1.05
    return -a * 4 / tau / (1 + math.exp(-tau * (r - 1)))


LOGS = [math.log(ratio) for ratio in RATIOS]
SEQUENCE_RATIOS = [math.exp(value) for value in of_sequence(LOGS, mean)]
# clipped where that gains: upwards with a positive advantage, downwards with a negative one
CLIPPED_LOGS = [min(log, 0.4) if a > 0 else max(log, -0.4) for log, a in zip(LOGS, ADVANTAGES, strict=True)]
COVARIANCES = [
    (a - mean(ADVANTAGES)) * (math.log(now) - mean([math.log(each) for each in NOW]))
    for a, now in zip(ADVANTAGES, NOW, strict=True)
]
LARGEST = COVARIANCES.index(max(COVARIANCES))
IMPORTANCE = of_sequence(LOGS, lambda logs: math.exp(sum(logs)))
CASES: dict[str, tuple[Any, list[float]]] = {
    "clip": ("clip", clipped(RATIOS)),
    "clip, dual": ({"dual_clip": 3.0}, clipped(RATIOS, dual=3.0)),
    "clip of an episode": ({"level": "episode"}, clipped(SEQUENCE_RATIOS)),
    "cispo": ({"kind": "cispo", "clip_low": 0.2, "clip_high": 0.2}, []),
    "policy_gradient": ("policy_gradient", [-a * math.log(now) for a, now in zip(ADVANTAGES, NOW, strict=True)]),
    "sapo": ("sapo", each(gate)),
    "gmpo": ("gmpo", each(lambda r, a: -a * r, [math.exp(v) for v in of_sequence(CLIPPED_LOGS, mean)])),
    "dro": (
        {"kind": "dro", "beta": 0.5},
        [log * log / 4 - a * math.log(now) for log, a, now in zip(LOGS, ADVANTAGES, NOW, strict=True)],
    ),
    "kl_cov": (
        {"kind": "kl_cov", "share": 0.25, "coef": 0.1},
        [loss + (0.1 * abs(LOGS[n]) if n == LARGEST else 0.0) for n, loss in enumerate(each(lambda r, a: -r * a))],
    ),
    "clip_cov": ({"kind": "clip_cov", "low": 5.0, "high": 6.0}, clipped(RATIOS)),
    "dppo": ({"kind": "dppo", "high": 0.15, "low": 0.5}, []),
    "dppo, kl": ({"kind": "dppo", "divergence": "kl", "high": 0.05, "low": 0.5}, []),
    "vespo": ("vespo", []),
    "cross_entropy": ("cross_entropy", [-math.log(now) for now in NOW]),
}
"""By name: the settings, and the loss of each token. Empty: the loss is a weight times -A log pi; see WEIGHED."""


def shape(w: float, a: float) -> float:
    power, rate = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
    return w**power * math.exp(rate * (1 - w))


def kl(now: float, old: float) -> float:
    return old * math.log(old / now) + (1 - old) * math.log((1 - old) / (1 - now))


WEIGHED: dict[str, list[float]] = {
    "cispo": [clip(r, 0.8, 1.2) for r in RATIOS],
    # up by .2 with a positive advantage is left out; down by .1 is not, nor up with a negative advantage
    "dppo": [0.0, *RATIOS[1:]],
    "dppo, kl": [0.0 if kl(NOW[0], OLD[0]) > 0.05 else RATIOS[0], *RATIOS[1:]],
    "vespo": [shape(w, a) for w, a in zip(IMPORTANCE, ADVANTAGES, strict=True)],
}


@pytest.mark.parametrize("name", CASES)
def test_a_loss_is_its_papers(name: str) -> None:
    """The weighted sum of the terms; where they are weights of -A log pi, the gradient is that weight times -A."""
    settings, expected = CASES[name]
    logprobs = torch.tensor([math.log(now) for now in NOW], requires_grad=True)
    old = torch.tensor([math.log(each) for each in OLD])
    ids = torch.tensor(EPISODES)
    inputs = LossInputs(
        logprobs, old, None, None, torch.tensor(ADVANTAGES), torch.tensor(WEIGHTS), logprobs.detach(), ids, ids
    )
    loss, _ = algorithm_of(AlgorithmSettings(loss=settings, correction="bypass")).loss(inputs)
    loss.backward()
    weights = WEIGHED.get(name)
    if weights is not None:
        expected = [-w * a * math.log(now) for w, a, now in zip(weights, ADVANTAGES, NOW, strict=True)]
        gradient = [-w * a / 4 for w, a in zip(weights, ADVANTAGES, strict=True)]
        assert logprobs.grad is not None and logprobs.grad.tolist() == pytest.approx(gradient, rel=1e-5, abs=1e-7)
    assert loss.item() == pytest.approx(sum(expected) / 4, rel=1e-5, abs=1e-6)


def test_every_loss_has_its_numbers() -> None:
    """A new one cannot go without; those of preferences are in test_preference.py."""
    kinds = {settings if isinstance(settings, str) else settings.get("kind", "clip") for settings, _ in CASES.values()}
    assert kinds == set(LOSSES) - {"own", "dpo", "kto", "orpo"}


# Eight tokens of two episodes of two turns each, on both sides of a pair; unequal advantages in each turn.
TURNS = torch.arange(4).repeat_interleave(2)
UNEQUAL = torch.tensor([1.0, 0.5, 2.0, 1.5, -1.0, -0.5, -2.0, -1.5])
SAMPLED = torch.full((8,), -1.0)
REQUIRED: dict[str, dict[str, Any]] = {"dro": {"beta": 0.5}}
OTHERWISE: dict[str, Any] = {
    **dict.fromkeys(("clip_low", "clip_high", "low", "high"), 0.01),
    **dict.fromkeys(("power_positive", "rate_positive", "power_negative", "rate_negative"), 0.5),
    **dict.fromkeys(("share", "cap"), 1.0),
    **dict.fromkeys(("dual_clip", "coef", "beta", "tau_positive", "tau_negative"), 2.0),
    "level": "turn",
    "divergence": "kl",
    "mean": "product",
}
LEVELS = ("token", "turn", "episode")
MASKS: list[dict[str, Any]] = [
    {"top_entropy": 0.5},
    {"second_moment": 0.04},
    *({"off_policy_mask": {"threshold": 0.11, "level": level}} for level in LEVELS),
    *({"correction": {"kind": "mask", "low": 0.9, "high": 1.1, "level": level}} for level in LEVELS),
    *({"correction": {"kind": "divergence", "high": 0.004, "level": level}} for level in LEVELS),
]


def inputs_of(logprobs: torch.Tensor, proximal: torch.Tensor) -> LossInputs:
    ids = TURNS, TURNS // 2, TURNS * 0
    given = SAMPLED, proximal, SAMPLED - 0.1, UNEQUAL, torch.full((8,), 1 / 8)
    return LossInputs(logprobs, *given, torch.arange(8.0).view(2, 4).t().flatten(), *ids)


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, rule in LOSSES.items() for key in rule.ratio_keys])
def test_what_acts_on_ratios_does_not_act_where_they_are_one(kind: str, key: str) -> None:
    """Two values of the key have one gradient there, whatever the advantages of what is taken together."""
    logprobs, slopes = (SAMPLED + 0.1 * torch.arange(8)).requires_grad_(), []
    for given in ({}, {key: OTHERWISE[key]}):
        loss = {"kind": kind, **REQUIRED.get(kind, {}), **given}
        algorithm = algorithm_of(AlgorithmSettings(loss=loss, correction="none"))
        (found,) = torch.autograd.grad(algorithm.loss(inputs_of(logprobs, logprobs.detach()))[0], logprobs)
        slopes.append(found.tolist())
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-6)


def test_a_cap_is_none_of_what_has_not_moved() -> None:
    """Below 1 it would scale tokens of the policy's own."""
    with pytest.raises(ConfigError, match=r"loss\.cap=0\.5 is not possible"):
        AlgorithmSettings(loss={"kind": "dppo", "cap": 0.5})


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("kind", sorted(set(LOSSES) - {"own"}))
def test_what_is_left_out_is_not_moved(kind: str, mask: dict[str, Any]) -> None:
    """Whatever a loss takes together; where its tokens have one loss, leaving some of them out is refused."""
    logprobs = (SAMPLED + torch.tensor([0.6, 0.4, 0.1, -0.1, -0.19, -0.19, -0.12, -0.06])).requires_grad_()
    proximal = SAMPLED + torch.tensor([0.5, 0.5, 0.0, 0.0, -0.05, 0.0, 0.0, 0.05])
    for level in LEVELS if "level" in LOSSES[kind].settings.model_fields else (None,):
        loss = {"kind": kind, **REQUIRED.get(kind, {}), **({} if level is None else {"level": level})}
        given = {"loss": loss, "advantage": "best_worst", "correction": "none", **mask}
        try:
            algorithm = algorithm_of(AlgorithmSettings(**given))
        except ConfigError as error:
            assert kind in ("gmpo", "dpo", "kto", "orpo") and f"loss={kind} is one loss for a whole" in str(error)
            continue
        terms = algorithm.terms(inputs_of(logprobs, proximal))
        (slopes,) = torch.autograd.grad(terms.loss_N.sum(), logprobs)
        assert terms.factor_N is not None
        is_out = terms.factor_N == 0
        assert is_out.any() and not slopes[is_out].any() and slopes[~is_out].any()


def test_whole_units_can_be_left_out() -> None:
    """Of a loss of turns or episodes those whose importance weight is out of bounds, by its level or a larger one."""
    for loss, level, is_taken in (
        ({"kind": "gmpo", "level": "turn"}, "turn", True),
        ({"kind": "gmpo", "level": "turn"}, "episode", True),
        ({"kind": "gmpo"}, "turn", False),
        ({"kind": "kto"}, "episode", True),
        ({"kind": "dpo"}, "episode", False),
    ):
        given = {"loss": loss, "advantage": "best_worst", "correction": {"kind": "mask", "level": level}}
        if is_taken:
            assert AlgorithmSettings(**given).correction.kind == "mask"
        else:
            with pytest.raises(ConfigError, match=f"mask with level={level}: algorithm.loss={loss['kind']} is one"):
                AlgorithmSettings(**given)


def test_a_ratio_of_an_episode_gives_each_token_its_own_gradient() -> None:
    """GSPO: of an unclipped sequence every token moves by -s A w, whatever its own ratio."""
    logprobs = torch.tensor([math.log(0.42), math.log(0.29)], requires_grad=True)
    old, ids = torch.tensor([math.log(0.4), math.log(0.3)]), torch.tensor([7, 7])
    ones = torch.ones(2)
    inputs = LossInputs(logprobs, old, None, None, ones, ones / 2, logprobs.detach(), ids, ids)
    loss, _ = algorithm_of(AlgorithmSettings(loss={"level": "turn"}, correction="bypass")).loss(inputs)
    loss.backward()
    ratio = math.sqrt(0.42 / 0.4 * 0.29 / 0.3)
    assert logprobs.grad is not None and logprobs.grad.tolist() == pytest.approx([-ratio / 2] * 2)
    assert loss.item() == pytest.approx(-ratio)
