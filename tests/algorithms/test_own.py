"""A user's own loss and advantage, in a file of theirs."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ludus.algorithms import AlgorithmSettings, GroupReturns, LossInputs, algorithm_of
from ludus.algorithms.measured import TokenNumbers
from ludus.errors import UserError
from ludus.types import Group

OWN = """
from ludus.algorithms import TokenAdvantages

def loss(inputs, *, slope=1.0):
    return -slope * inputs.advantages_N * inputs.logprobs_N, {"mine": inputs.logprobs_N.detach().mean()}

def flat(inputs): return inputs.logprobs_N.sum(), {}
def dead(inputs): return inputs.advantages_N, {}
def bare(inputs): return -inputs.logprobs_N

def advantage(groups, *, times=1.0):
    flat = [value for each in groups for turns in each.returns.values() for value in turns.values()]
    mean = sum(flat) / len(flat)
    return [
        {m: {t: times * (v - mean) for t, v in turns.items()} for m, turns in each.returns.items()} for each in groups
    ]

def fewer(groups): return []
def without_member(groups): return [{} for _ in groups]
def without_turn(groups): return [{m: {} for m in each.returns} for each in groups]
def floats(groups): return [{m: dict.fromkeys(ts, 0.5) for m, ts in each.returns.items()} for each in groups]
def without_targets(groups): return by_token(groups, TokenAdvantages((0.5, 0.5), (0.0, 0.0)))
def too_short(groups): return by_token(groups, TokenAdvantages((0.5,), (0.0,), (0.0,)))
def whole(groups): return by_token(groups, TokenAdvantages((0.5, 0.5), (0.0, 0.0), (0.5, 0.5)))
def by_token(groups, first):
    return [{m: {t: first if t == "t" else None for t in ts} for m, ts in each.returns.items()} for each in groups]

def endless(groups): return [{m: dict.fromkeys(ts, 1e999) for m, ts in each.returns.items()} for each in groups]
"""

NUMBERS = TokenNumbers(values=(0.0, 0.0))


@pytest.fixture
def own(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / f"own_{abs(hash(request.node.name))}.py"
    path.write_text(OWN)
    return path


def inputs() -> LossInputs:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    return LossInputs(logprobs, logprobs.detach(), None, None, torch.tensor([1.0, 0.5]), torch.tensor([0.5, 0.5]))


def returns() -> list[GroupReturns]:
    given = [{"a": {"t": 1.0}, "b": {"t": 0.0}}, {"c": {"t": 2.0}}]
    return [GroupReturns(Group(f"g{number}", "task", ()), each) for number, each in enumerate(given)]


def test_an_own_loss_is_weighted_like_any_other(own: Path) -> None:
    """It returns the loss of each token, from keys of its own; its metrics stand beside those of sampling."""
    settings: dict[str, Any] = {"kind": "own", "path": f"{own}:loss", "kwargs": {"slope": 2.0}}
    loss, metrics = algorithm_of(AlgorithmSettings(loss=settings, correction="bypass")).loss(inputs())
    assert loss.item() == pytest.approx(0.5 * 2 * 1 + 0.5 * 2 * 0.5 * 2)
    assert metrics["mine"].item() == -1.5 and metrics["kl"].item() == 0


def test_an_own_advantage_sees_all_groups_of_the_batch(own: Path) -> None:
    """The mean over both groups is 1."""
    settings: dict[str, Any] = {"kind": "own", "path": f"{own}:advantage", "kwargs": {"times": 3.0}}
    assert algorithm_of(AlgorithmSettings(advantage=settings)).advantages(returns()) == [
        {"a": {"t": 0.0}, "b": {"t": -3.0}},
        {"c": {"t": 3.0}},
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("flat", r"own_.*:flat' must return .* of shape \(2,\), got \(\); it is weighted"),
        ("dead", "has no gradient"),
        ("bare", "and a dict of metrics, got Tensor"),
    ],
)
def test_an_own_loss_that_cannot_be_is_named(own: Path, name: str, message: str) -> None:
    """By its import string, with what must come back."""
    with pytest.raises(UserError, match=message):
        algorithm_of(AlgorithmSettings(loss=f"{own}:{name}", correction="bypass")).loss(inputs())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fewer", "own_.*:fewer' returned 0 groups of 2"),
        ("without_member", r"in group 'g0': members must be \['a', 'b'\], got \[\]"),
        ("without_turn", r"turns of member 'a' must be \['t'\], got \[\]"),
        ("endless", "the advantage of turn 't' must be a finite number, got inf"),
    ],
)
def test_an_own_advantage_that_cannot_be_is_named(own: Path, name: str, message: str) -> None:
    """By its import string and the group."""
    with pytest.raises(UserError, match=message):
        algorithm_of(AlgorithmSettings(advantage=f"{own}:{name}")).advantages(returns())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("floats", r"turn 't' must have TokenAdvantages with values and value_targets, .* or None, got 0\.5; return"),
        ("without_targets", r"turn 't' must have .*, got TokenAdvantages without them"),
        ("too_short", "turn 't' must have the advantages of 2 tokens, those that were measured, got 1"),
    ],
)
def test_what_a_critic_cannot_learn_from_is_named(own: Path, name: str, message: str) -> None:
    """By its turn, before it is packed into a row; all values and targets, or no credit, are taken."""
    given = [
        GroupReturns(Group("g", "task", ()), {"a": {"t": 1.0, "u": 1.0}}, measured=dict.fromkeys("tu", NUMBERS)),
    ]
    settings = {"kind": "own", "measured": ["values"]}
    estimators = {
        each: algorithm_of(AlgorithmSettings(advantage={**settings, "path": f"{own}:{each}"}))  # type: ignore[arg-type]
        for each in (name, "whole")
    }
    with pytest.raises(UserError, match=message):
        estimators[name].advantages(given)
    assert estimators["whole"].advantages(given)[0]["a"]["u"] is None


def test_functions_are_imported_when_they_are_asked_for(own: Path) -> None:
    """Not by the settings; `load` imports them, so that a run fails at its start."""
    algorithm = algorithm_of(AlgorithmSettings(loss="no_such.py:loss", advantage=f"{own}:advantage"))
    assert algorithm.imported == (f"{own}:advantage", "no_such.py:loss")
    with pytest.raises(UserError, match=r"there is no file 'no_such\.py'"):
        algorithm.load()
