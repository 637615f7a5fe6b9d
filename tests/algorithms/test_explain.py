"""The objective in formulas: each letter has a line, with the run's own numbers."""

import pytest

from ludus.algorithms import AlgorithmSettings
from ludus.algorithms.explain import explain, explain_run
from ludus.algorithms.table import PRESETS

LEFT_OPEN = {"dr_grpo": {"normaliser": {"tokens": 10}}, "gdpo": {"advantage": {"rewards": {"right": 1.0}}}}


def formulas(**settings: object) -> dict[str, str]:
    terms = explain(AlgorithmSettings(**settings), turn_discount=0.5)
    return {term.name: term.formula for term in terms}


def test_the_numbers_are_the_runs() -> None:
    """Bounds, weights, and keys that a formula has no place for."""
    loss = {"clip_high": 0.28, "dual_clip": 3.0, "level": "turn"}
    seen = formulas(loss=loss, minibatches=4, kl={"beta": 0.05}, entropy={"coef": 0.01}, correction={"cap": 5.0})
    assert seen["minimise"] == "sum over tokens of w (c loss + 0.05 kl - 0.01 H)"
    assert seen["G"] == "reward + 0.5 * mean of G over the turns that follow"
    assert seen["loss"] == "-min(r A, clip(r, 1 - 0.2, 1 + 0.28) A), level=turn, dual_clip=3"
    assert seen["r"] == "pi / prox, to the weights before the 4 optimizer steps on a batch"
    steps = "1 / tokens * 4: the 4 optimizer steps weigh as much as 4 batches"
    assert (seen["c"], seen["w"], formulas()["w"]) == ("min(prox / mu, 5)", steps, "1 / tokens")
    assert formulas()["r"].startswith("pi / prox = 1") and formulas(correction="bypass")["r"].startswith("pi / mu")
    again = formulas(minibatches=4, epochs=2)
    assert again["r"] == "pi / prox, to the weights before the 8 optimizer steps on a batch"
    assert again["epochs"].startswith("2: a batch's minibatches are trained on so many times") and "epochs" not in seen


def test_a_formula_has_the_form_that_its_keys_give_it() -> None:
    """What is kept counts once, or a lower bound too: no key contradicts what stands before it."""
    band = {"kind": "mask", "low": 0.5, "high": 2.0}
    assert formulas(correction=band)["c"] == "prox / mu where it lies in [0.5, 2], else 0"
    once = formulas(correction={**band, "weighs": False})["c"]
    assert once == "1 where prox / mu lies in [0.5, 2], else 0, weighs=False"
    assert formulas(loss="cispo")["loss"] == "-sg(min(r, 1 + 4)) A log pi"
    bounded = formulas(loss={"kind": "cispo", "clip_low": 0.2})["loss"]
    assert bounded == "-sg(clip(r, 1 - 0.2, 1 + 4)) A log pi"
    three = [
        {**band, "weighs": False, "counted": False},
        {"cap": 3.0, "floor": 0.1},
        {"kind": "divergence", "high": 0.1},
    ]
    assert formulas(correction=three)["c"] == (
        f"({once}, counted=False) * (max(0.1, min(prox / mu, 3))) * "
        "(1 where the k3 estimate of KL(mu || prox) is at most 0.1, else 0)"
    )
    assert formulas(correction=three)["w"] == "1 / tokens, of the tokens that c does not leave out"
    assert (
        formulas(correction=["bypass", three[-1]])["c"]
        == "1 where the k3 estimate of KL(mu || pi) is at most 0.1, else 0"
    )
    gmpo = formulas(loss={"kind": "gmpo", "level": "turn"})["loss"]
    assert gmpo.startswith("-A exp(mean over the turn of l), A: its mean over the turn, l: min(log r, b) where A > 0,")


def test_sources_of_rows_that_weigh_more_are_named() -> None:
    """Those of weight 1 are not."""
    terms = explain(AlgorithmSettings(), turn_discount=1.0, loss_weights={"math": 2.0, "chat": 1.0})
    assert next(term.formula for term in terms if term.name == "w") == "1 / tokens; times 2 for rows of math"


def test_what_is_left_out_has_its_lines() -> None:
    """Each rule with its bound."""
    settings = AlgorithmSettings(max_sequence_tokens=100, mask_truncated_completions=True, second_moment=0.04)
    left_out = [term.formula for term in explain(settings, turn_discount=1.0) if term.name == "left out"]
    assert left_out == [
        "tokens further than 100 down a conversation, prompts counted",
        "answers that were cut off at their longest length",
        "of the tokens with A log prox / mu > 0 those with the largest (log prox / mu)^2, until the mean of the "
        "others' is below 0.04",
    ]


def test_what_dynamic_sampling_replaces_is_said_by_the_estimator() -> None:
    """Returns that agree, or what else leaves it nothing."""
    for advantage, which in (
        ("group", "whose returns are equal"),
        ("pass_at_k", "without a single best"),
        ({"kind": "gdpo", "rewards": {"right": 1.0}}, "in which each of {'right': 1.0} agrees"),
        ("gigpo", "in which A is 0 for each turn"),
        ("best_worst", "whose best and worst are equal"),
    ):
        assert formulas(advantage=advantage, dynamic_sampling=True)["groups"] == f"those {which} are replaced"


def test_what_dynamic_sampling_compares_is_said() -> None:
    """Rewards before or with their length penalty, or a metric."""
    shaped = {"overlong": {"tokens": 2, "max_tokens": 4}, "dynamic_sampling": True}
    for metric, which in (
        (None, "whose returns are equal, before the length penalty,"),
        ("reward", "whose returns are equal, with the length penalty,"),
        ("acc", "in which all have the same acc"),
    ):
        said = formulas(**shaped, dynamic_sampling_metric=metric)["groups"]
        assert said == f"those {which} are replaced"


def test_the_proximal_policy_has_its_line() -> None:
    """Where it lies between two others; reused, the ratio is 1."""
    seen = formulas(proximal="interpolate", minibatches=4)
    assert seen["r"] == "pi / prox" and seen["prox"].startswith("mu^(1 / d) pi^(1 - 1 / d), d the versions")
    assert "prox" not in formulas() and formulas(proximal="reuse", minibatches=4)["r"].startswith("pi / prox = 1")


def test_a_critic_has_its_line() -> None:
    """GAE with its numbers, and what the critic minimises."""
    settings = AlgorithmSettings(name="ppo", advantage={"lam": 0.95})
    seen = {term.name: term.formula for term in explain(settings, turn_discount=0.5, value_clip=0.2)}
    assert seen["A"].startswith("delta + g 0.95 A(next), delta = r + g V(next) - V, by token, whitened: True; g: 1 ")
    assert seen["critic"].endswith("/ 2, of V and V held within 0.2 of before, the worse")
    assert "critic" not in formulas()
    longer = {term.name: term.formula for term in explain(settings, turn_discount=0.5, value_epochs=3)}
    assert longer["critic"].endswith("; 3 epochs of its own on a batch")
    shared = {term.name: term.formula for term in explain(settings, turn_discount=0.5, value_weight=0.5)}
    assert shared["critic"].endswith("; 0.5 of it beside the loss, of the policy's states")


def test_a_divergence_in_the_reward_has_its_lines() -> None:
    """What a token costs, and how that moves."""
    seen = formulas(reward_kl={"coef": 0.1, "estimator": "k2"})
    assert seen["reward"].startswith("reward - 0.1 * sum over the turn's tokens of d, within 10 either way; d: (log mu")
    seen = formulas(reward_kl={"coef": 0.1, "target": 0.05})
    assert seen["reward"].startswith("reward - k * sum") and seen["reward"].endswith("d: log mu - log ref")
    for settings, is_alone in (
        ({"name": "ppo"}, True),
        ({"name": "ppo", "advantage": {"unit": "turn"}}, False),
        ({"name": "reinforce_plus_plus"}, True),
        ({"name": "reinforce_plus_plus_baseline"}, False),
    ):
        lost = "d of the token itself" if is_alone else "sum over the turn's tokens of d"
        assert formulas(**settings, reward_kl={"coef": 0.1})["reward"].startswith(f"reward - 0.1 * {lost}, within 10")
    assert seen["k"] == "0.1, times 1 + clip(KL / 0.05 - 1, -0.2, 0.2) episodes / 10000 after a batch"


def test_replay_has_its_line() -> None:
    """With the letter that weighs its tokens."""
    for correction, letter in (("truncate", "c"), ("bypass", "r")):
        (*_, last) = explain(AlgorithmSettings(correction=correction), turn_discount=1.0, replayed=0.25)
        assert last.formula == f"up to 0.25 of a batch are good ones of earlier batches, whose tokens {letter} weighs"


def test_experts_have_their_line() -> None:
    """With the run's gamma."""
    settings = AlgorithmSettings(demonstrations={"gamma": 0.5})
    (*_, last) = explain(settings, turn_discount=1.0, has_demonstrations=True)
    assert last.formula == "-A p / (p + 0.5), with c = 1, p = pi, of tokens that experts gave"


def test_a_run_is_explained_with_all_that_its_configuration_says() -> None:
    """Its critic, what is replayed, experts, and sources that weigh more; of parts that it has not, nothing."""
    settings = AlgorithmSettings(name="ppo")
    written = {
        "rollout": {"agent": {"turn_discount": 0.5}, "replay": {"share": 0.25}},
        "critic": {"clip_range": 0.2, "model": "shared", "loss_weight": 0.4},
        "train_dataset": {"demonstrations": "target", "mix": {"math": {"loss_weight": 2}}},
    }
    said = explain(
        settings,
        turn_discount=0.5,
        value_clip=0.2,
        value_weight=0.4,
        replayed=0.25,
        has_demonstrations=True,
        loss_weights={"math": 2.0},
    )
    assert explain_run(settings, written) == said
    alone = {"rollout": {"agent": {"turn_discount": 0.5}, "replay": None}}
    assert explain_run(settings, alone) == explain(settings, turn_discount=0.5)


@pytest.mark.parametrize("name", PRESETS)
def test_every_name_is_explained(name: str) -> None:
    """With a source for the advantage, the loss, the correction and the weights; nothing is left in braces."""
    terms = explain(AlgorithmSettings(name=name, **LEFT_OPEN.get(name, {})), turn_discount=1.0)
    assert all(term.source for term in terms if term.name in ("A", "loss", "c", "w"))
    assert not any("{" in term.formula.replace("{'right': 1.0}", "") or "None" in term.formula for term in terms)
