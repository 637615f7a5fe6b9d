"""Several corrections at once, divergences, and tokens that leave the denominators; numbers worked out by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ludus.algorithms import AlgorithmSettings, LossInputs, algorithm_of
from ludus.algorithms.base import LossTerms
from ludus.algorithms.corrections import DivergenceSettings, MaskSettings, SeveralSettings, TruncateSettings
from ludus.errors import ConfigError

WEIGHTS = (2.0, 0.5, 8.0, 1.0)
"""prox / mu of four tokens, two of each of two episodes."""
K3 = [w - math.log(w) - 1 for w in WEIGHTS]


def terms_of(correction: Any, *, moved: float = 1.0, **settings: Any) -> tuple[LossTerms, Tensor, Tensor]:
    """The terms, and the slopes by logprobs and entropies, if every advantage is 1 and pi / prox is `moved`."""
    sampled = torch.tensor([0.2, 0.2, 0.1, 0.5]).log()
    proximal = sampled + torch.tensor(WEIGHTS).log()
    logprobs = (proximal + math.log(moved)).requires_grad_()
    entropies = torch.tensor([0.1, 0.4, 0.2, 0.3], requires_grad=True)
    ids = torch.tensor([0, 0, 1, 1])
    settings = {"loss": "policy_gradient", **settings}
    algorithm = algorithm_of(AlgorithmSettings(correction=correction, **settings))
    before = proximal if algorithm.needs.proximal else None
    weights = torch.tensor(algorithm.weights([2, 2])).repeat_interleave(2)
    inputs = LossInputs(logprobs, sampled, before, proximal - 1, torch.ones(4), weights, entropies, ids, ids, ids * 0)
    terms = algorithm.terms(inputs)
    slopes = torch.autograd.grad(terms.loss_N.sum(), (logprobs, entropies), materialize_grads=True)
    return terms, *slopes


def factors_of(correction: Any, **keys: Any) -> list[float]:
    factor_N = terms_of(correction, **keys)[0].factor_N
    assert factor_N is not None
    return factor_N.tolist()


MASK: dict[str, Any] = {"kind": "mask", "weighs": False}


@pytest.mark.parametrize(
    ("correction", "factors"),
    [
        ([{"cap": 1.5}, {**MASK, "level": "episode", "high": 5.0}], [1.5, 0.5, 0, 0]),
        ([{"cap": 4.0, "level": "episode"}, {**MASK, "low": 0.75}], [1, 0, 0, 4]),
        (
            [{**MASK, "high": 1.5}, {**MASK, "level": "episode", "mean": "geometric", "high": 2.5}, {"cap": 9.0}],
            [0, 0.5, 0, 0],
        ),
        ([{"cap": 4.0, "floor": 0.8}], [2, 0.8, 4, 1]),
    ],
)
def test_several_act_together(correction: list[Any], factors: list[float]) -> None:
    """Each has its level and its bounds: factors multiply, and what one leaves out is left out."""
    assert factors_of(correction) == pytest.approx(factors)


@pytest.mark.parametrize(
    ("keys", "largest"),
    [
        ({}, K3),
        ({"estimator": "k2"}, [math.log(w) ** 2 / 2 for w in WEIGHTS]),
        ({"level": "episode"}, [sum(K3[:2]) / 2] * 2 + [sum(K3[2:]) / 2] * 2),
        ({"level": "episode", "combine": "sum"}, [sum(K3[:2])] * 2 + [sum(K3[2:])] * 2),
        ({"level": "turn", "combine": "max"}, [max(K3[:2])] * 2 + [max(K3[2:])] * 2),
    ],
)
def test_a_divergence_is_bounded(keys: dict[str, Any], largest: list[float]) -> None:
    """Of a token, or the mean, sum or largest of a turn or an episode: kept up to the bound, left out above it."""
    for high in (each * beside for each in {*largest} if each for beside in (0.999, 1.001)):
        expected = [float(each <= high) for each in largest]
        assert factors_of({"kind": "divergence", "high": high, **keys}) == expected


def test_beside_bypass_it_is_the_trained_policy_that_is_bounded() -> None:
    """Ratios are pi / mu, here half of prox / mu: 1, .25, 4, .5; and the weights before the batch are not computed."""
    correction = ["bypass", {**MASK, "low": 0.4}]
    algorithm = algorithm_of(AlgorithmSettings(correction=correction))
    assert not algorithm.needs.proximal and not algorithm.needs.minibatch
    assert factors_of(correction, moved=0.5) == [1, 0, 1, 1]
    _, slopes, _ = terms_of(correction, moved=0.5, loss={"clip_high": 9.0})
    assert slopes.tolist() == pytest.approx([-1 / 4, 0, -4 / 4, -0.5 / 4])


@pytest.mark.parametrize(
    ("normaliser", "weights"),
    [
        ("token", [1 / 3, 1 / 3, 0, 1 / 3]),
        ("episode", [1 / 4, 1 / 4, 0, 1 / 2]),
        ({"kind": "constant", "tokens": 10}, [1 / 20, 1 / 20, 0, 1 / 20]),
    ],
)
def test_what_is_not_counted_leaves_the_denominators(normaliser: Any, weights: list[float]) -> None:
    """Of the loss, the entropy and the KL term: as if the third token had not been sampled."""
    correction = {**MASK, "high": 4.0, "counted": False}
    keys: dict[str, Any] = {"entropy": {"coef": 0.5}, "kl": {"beta": 0.1, "estimator": "k1"}, "normaliser": normaliser}
    terms, slopes, of_entropies = terms_of(correction, **keys)
    assert terms.weights_N.tolist() == pytest.approx(weights)
    assert slopes.tolist() == pytest.approx([w * (0.1 - 1) for w in weights])
    assert of_entropies.tolist() == pytest.approx([-0.5 * w for w in weights])
    counted, _, _ = terms_of({**correction, "counted": True}, **keys)
    assert len({*counted.weights_N.tolist()}) == 1


def test_an_episode_of_which_nothing_counts_is_still_one() -> None:
    """verl divides by all sequences; and where nothing is left at all, nothing is trained."""
    of_one = {**MASK, "level": "episode", "high": 4.0, "counted": False}
    terms, _, _ = terms_of(of_one, normaliser="episode")
    assert terms.weights_N.tolist() == pytest.approx([1 / 4, 1 / 4, 0, 0])
    for normaliser in ("token", "episode"):
        terms, slopes, _ = terms_of({**of_one, "low": 3.0}, normaliser=normaliser)
        assert terms.loss_N.tolist() == slopes.tolist() == [0] * 4


def test_tokens_of_flat_groups_count_too() -> None:
    """Where denominators are of the kept tokens, all tokens of a minibatch must be there."""
    for kind in ("mask", "divergence"):
        needs = algorithm_of(AlgorithmSettings(correction={"kind": kind, "counted": False})).needs  # type: ignore[arg-type]
        assert needs.minibatch and needs.flat_groups
        assert not algorithm_of(AlgorithmSettings(correction=kind)).needs.minibatch  # type: ignore[arg-type]


def test_a_list_comes_back_as_it_was_written() -> None:
    """With its own defaults, also without them, and below a name with a correction of its own."""
    settings = AlgorithmSettings(name="icepop", correction=[{"cap": 3.0}, {**MASK, "level": "episode"}])  # type: ignore[arg-type]
    assert isinstance(settings.correction, SeveralSettings)
    assert settings.correction.of == (TruncateSettings(cap=3.0), MaskSettings(weighs=False, level="episode"))
    for unset in (True, False):
        assert AlgorithmSettings(**settings.model_dump(mode="json", exclude_unset=unset)) == settings


@pytest.mark.parametrize(
    ("correction", "message"),
    [
        ([], "an empty list corrects nothing"),
        (["truncate", "mask"], "truncate and mask each bring the ratio .* set weighs: false for a mask"),
        (["bypass", "truncate"], "bypass and truncate each bring the ratio"),
        (["none"], "'none' is not available; there are bypass, truncate, mask, divergence"),
        (7, "or a mapping with it as `kind`, or a list of such, got 7"),
    ],
)
def test_what_cannot_stand_together_is_said(correction: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AlgorithmSettings(correction=correction)


def test_a_part_of_several_can_be_the_obstacle() -> None:
    """Masks below the unit of a loss, and corrections none of which weighs tokens of other policies."""
    with pytest.raises(ConfigError, match=r"algorithm\.correction=divergence with level=token: algorithm\.loss=gmpo"):
        AlgorithmSettings(loss="gmpo", correction=["truncate", "divergence"])  # type: ignore[arg-type]
    obstacles = {
        "divergence": "algorithm.correction=divergence counts them as the policy's own",
        "several with weighs=false": "algorithm.correction=several with weighs=false counts them",
    }
    for correction, said in zip(("divergence", [MASK, "divergence"]), obstacles.values(), strict=True):
        obstacle = AlgorithmSettings(correction=correction).off_policy_obstacle  # type: ignore[arg-type]
        assert obstacle is not None and said in obstacle
    assert AlgorithmSettings(correction=["truncate", "divergence"]).off_policy_obstacle is None  # type: ignore[arg-type]
    assert AlgorithmSettings(correction=["bypass", "divergence"]).off_policy_obstacle is None  # type: ignore[arg-type]


def test_how_tokens_are_combined_acts_on_several_alone() -> None:
    (idle,) = DivergenceSettings(combine="max").idle()
    assert idle.key == "combine" and not [*DivergenceSettings(combine="max", level="turn").idle()]
