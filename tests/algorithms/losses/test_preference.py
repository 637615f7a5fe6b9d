"""DPO, KTO and ORPO on two pairs of unequal lengths: value and gradient by the papers' formulas, in floats."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from ludus.algorithms import AlgorithmSettings, LossInputs, algorithm_of
from ludus.algorithms.pack import OWN, REPLAYED, UNRELATED
from ludus.errors import ConfigError

# Four sequences: chosen and rejected of pair 0, chosen and rejected of pair 1; their tokens lie in no order.
NOW = {0: [-0.5, -1.0], 1: [-2.0], 2: [-0.3], 3: [-0.7, -0.1, -1.5]}
REFERENCE = {0: [-0.9, -0.8], 1: [-1.4], 2: [-0.6], 3: [-0.5, -0.5, -0.9]}
PLACES = [(3, 0), (0, 0), (1, 0), (3, 1), (2, 0), (0, 1), (3, 2)]
Z = {each: sum(NOW[each]) - sum(REFERENCE[each]) for each in NOW}
M = {each: sum(NOW[each]) / len(NOW[each]) for each in NOW}


def loss_of(
    name: str,
    now: dict[int, list[float]] = NOW,
    *,
    sides: Mapping[int, float] | None = None,
    origins: Mapping[int, int] | None = None,
    **loss: Any,
) -> tuple[float, torch.Tensor]:
    """The loss and its gradient by the logprobs, token by token as in PLACES. sides: the advantages; origins: where the
    sequences come from."""
    algorithm = algorithm_of(AlgorithmSettings(name=name, **({"loss": loss} if loss else {})))
    side = {each: (-1.0) ** each for each in NOW} | dict(sides or {})
    counts = [len(tokens) if side[each] else 0 for each, tokens in NOW.items()]
    weights = dict(zip(NOW, algorithm.weights(counts), strict=True))
    logprobs = torch.tensor([now[each][at] for each, at in PLACES], requires_grad=True)
    inputs = LossInputs(
        logprobs_N=logprobs,
        sampled_logprobs_N=torch.zeros(len(PLACES)),
        proximal_logprobs_N=None,
        reference_logprobs_N=torch.tensor([REFERENCE[each][at] for each, at in PLACES]),
        advantages_N=torch.tensor([side[each] for each, _ in PLACES]),
        weights_N=torch.tensor([weights[each] for each, _ in PLACES]),
        turns_N=torch.tensor([each for each, _ in PLACES]),
        episodes_N=torch.tensor([each for each, _ in PLACES]),
        groups_N=torch.tensor([each // 2 for each, _ in PLACES]),
        origins_N=None if origins is None else torch.tensor([origins.get(each, OWN) for each, _ in PLACES]),
    )
    value, _ = algorithm.loss(inputs)
    value.backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    return float(value.detach()), logprobs.grad


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def of_pairs(loss: Callable[[float], float]) -> float:
    """The mean over pairs of a function of z_w - z_l."""
    return (loss(Z[0] - Z[1]) + loss(Z[2] - Z[3])) / 2


SMOOTH = 0.2
DPO: dict[str, tuple[dict[str, Any], float]] = {
    "sigmoid": ({}, of_pairs(lambda d: -math.log(sigmoid(0.1 * d)))),
    "smooth": (
        {"label_smoothing": SMOOTH},
        of_pairs(lambda d: -0.8 * math.log(sigmoid(0.1 * d)) - 0.2 * math.log(sigmoid(-0.1 * d))),
    ),
    "robust": (
        {"variant": "robust", "label_smoothing": SMOOTH},
        of_pairs(lambda d: (-0.8 * math.log(sigmoid(0.1 * d)) + 0.2 * math.log(sigmoid(-0.1 * d))) / 0.6),
    ),
    "hinge": ({"variant": "hinge", "beta": 0.9}, of_pairs(lambda d: max(0.0, 1 - 0.9 * d))),
    "ipo": (
        {"variant": "ipo", "beta": 0.5},
        ((Z[0] / 2 - Z[1] - 1) ** 2 + (Z[2] - Z[3] / 3 - 1) ** 2) / 2,
    ),
}


@pytest.mark.parametrize("name", DPO)
def test_dpo(name: str) -> None:
    """The mean over pairs."""
    keys, expected = DPO[name]
    assert loss_of("dpo", **keys)[0] == pytest.approx(expected, rel=1e-5)


def test_the_gradient_of_dpo_is_the_papers() -> None:
    """-beta sigma(beta (z_l - z_w)) for each token of the chosen, the opposite for the rejected. Source: its sec. 4."""
    slopes = [-0.1 * sigmoid(0.1 * (Z[1] - Z[0])) / 2, -0.1 * sigmoid(0.1 * (Z[3] - Z[2])) / 2]
    expected = [slopes[each // 2] * (-1) ** each for each, _ in PLACES]
    assert loss_of("dpo")[1].tolist() == pytest.approx(expected, rel=1e-5)


def test_a_sure_pair_stays_finite() -> None:
    """With sequences that have become all but impossible neither the loss nor its gradient is infinite."""
    value, gradient = loss_of("dpo", {**NOW, 0: [-2e4, -2e4]})
    assert value == pytest.approx(2000, rel=0.01) and gradient.isfinite().all()
    value, gradient = loss_of("orpo", {**NOW, 0: [0.0, 0.0], 1: [-2e4]})
    assert math.isfinite(value) and gradient.isfinite().all()


def test_kto_moves_each_sequence_from_the_reference_point() -> None:
    """z0 is the mean of the sequences' own z, here above 0, without gradient."""
    now = {**NOW, 2: [-0.01], 3: [-0.1, -0.1, -0.1]}
    z = {each: sum(now[each]) - sum(REFERENCE[each]) for each in now}
    z0 = sum(z.values()) / 4
    assert z0 > 0
    worth = [sigmoid(0.1 * (-1) ** each * (z[each] - z0)) for each in now]
    expected = sum(weight * (1 - each) for weight, each in zip((2, 1, 2, 1), worth, strict=True)) / 4
    value, gradient = loss_of("kto", now, desirable_weight=2.0)
    assert value == pytest.approx(expected, rel=1e-5)
    slope = -2 * 0.1 * worth[0] * (1 - worth[0]) / 4
    assert gradient[1].item() == pytest.approx(slope, rel=1e-5)
    below = [1 - sigmoid(0.1 * (-1) ** each * Z[each]) for each in NOW]
    assert sum(Z.values()) < 0 and loss_of("kto")[0] == pytest.approx(sum(below) / 4, rel=1e-5)


def test_every_episode_of_the_policy_measures_the_reference_point() -> None:
    """Episodes without a side too, and neither demonstrations nor replayed ones; of files the unrelated answers alone.
    The mean is over those that have a side."""
    now = {**NOW, 2: [-0.01], 3: [-0.1, -0.1, -0.1]}
    z = {each: sum(now[each]) - sum(REFERENCE[each]) for each in now}
    sides = {2: 0.0, 3: 0.0}
    for origins, measuring in (
        (None, (0, 1, 2, 3)),
        ({}, (0, 1, 2, 3)),
        ({1: REPLAYED}, (0, 2, 3)),
        ({2: UNRELATED, 3: UNRELATED}, (2, 3)),
    ):
        z0 = max(sum(z[each] for each in measuring) / len(measuring), 0.0)
        expected = sum(1 - sigmoid(0.1 * (-1) ** each * (z[each] - z0)) for each in (0, 1)) / 2
        assert z0 > 0 and loss_of("kto", now, sides=sides, origins=origins)[0] == pytest.approx(expected, rel=1e-5)


def test_orpo_needs_no_reference() -> None:
    """Cross-entropy of the chosen, and the log-sigmoid of the odds' ratio, of means over tokens."""

    def log_odds(each: int) -> float:
        return M[each] - math.log(1 - math.exp(M[each]))

    terms = [-M[w] - 0.3 * math.log(sigmoid(log_odds(w) - log_odds(w + 1))) for w in (0, 2)]
    assert loss_of("orpo", beta=0.3)[0] == pytest.approx(sum(terms) / 2, rel=1e-5)
    needs = algorithm_of(AlgorithmSettings(name="orpo")).needs
    assert needs.pairs and needs.minibatch and not needs.reference


def test_settings_that_do_not_go_together_are_refused() -> None:
    """Smoothing of a loss that has none, a loss of pairs where no advantage makes any, and sides where a teacher gives
    each token an advantage of its own."""
    with pytest.raises(ConfigError, match=r"loss 'kto' reads which side .* algorithm.distillation gives each"):
        AlgorithmSettings(name="kto", distillation={})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"loss.label_smoothing=0.1 has no meaning with variant 'ipo'"):
        AlgorithmSettings(name="dpo", loss={"variant": "ipo", "label_smoothing": 0.1})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"loss 'kto' takes each episode as a whole .* 'group' may .* take name: kto"):
        AlgorithmSettings(loss="kto")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"loss 'dpo' compares two members .* 'group' .* take name: dpo"):
        AlgorithmSettings(loss="dpo")  # type: ignore[arg-type]
