"""The tables and the names: each rule is whole, and each name stands for what it says."""

import inspect
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, get_args

import pytest

from ludus.algorithms import AlgorithmSettings, algorithm_of
from ludus.algorithms.base import Rule
from ludus.algorithms.estimators.group import Baseline
from ludus.algorithms.own import OwnLossSettings
from ludus.algorithms.table import CORRECTIONS, ESTIMATORS, LOSSES, NORMALISERS, PRESETS
from ludus.errors import ConfigError

TABLES = {"advantage": ESTIMATORS, "loss": LOSSES, "correction": CORRECTIONS, "normaliser": NORMALISERS}
RULES = [(f"{table}.{kind}", rule) for table, rules in TABLES.items() for kind, rule in rules.items()]
LEFT_OPEN: dict[str, Any] = {
    "dr_grpo": {"normaliser": {"tokens": 10}},
    "gdpo": {"advantage": {"rewards": {"right": 1.0}}},
}
"""What the name leaves open."""


@pytest.mark.parametrize(("name", "rule"), RULES, ids=[name for name, _ in RULES])
def test_a_rule_is_whole(name: str, rule: Rule) -> None:
    """Its keys are its function's keyword arguments, it has a source, and the first line of its settings says it."""
    parameters = inspect.signature(rule.function).parameters.values()
    keywords = {each.name for each in parameters if each.kind == each.KEYWORD_ONLY}
    assert set(rule.settings.model_fields) - {"kind"} == keywords
    assert rule.formula_of(rule.settings.model_construct()).format(**dict.fromkeys(keywords, 0))
    assert rule.source and rule.settings.__doc__
    assert name.endswith(f".{rule.settings.model_fields['kind'].default}")


def test_the_page_of_keys_names_every_kind() -> None:
    """docs/configuration.md has those of the tables, and of what a baseline is and a loss of one's own may need."""
    needs, _ = get_args(OwnLossSettings.model_fields["needs"].annotation)
    named: dict[str, Collection[str]] = {
        **TABLES,
        "advantage.baseline": get_args(Baseline),
        "loss.needs": get_args(needs),
    }
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    for key, kinds in named.items():
        (row,) = re.findall(rf"^\| `algorithm\.{re.escape(key)}` .*$", page, re.MULTILINE)
        values = re.split(r"(?<!\\)\|", row)[2]
        assert set(re.findall(r"`(\w+)`", values)) == set(kinds), key


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("loss", [None, "clip", "cispo", "cross_entropy", "a.py:b"])
def test_every_name_composes(name: str, loss: str | None) -> None:
    """Alone and with every other kind of loss, and it comes back from what is written of it."""
    settings = AlgorithmSettings(name=name, **LEFT_OPEN.get(name, {}), **({} if loss is None else {"loss": loss}))
    assert algorithm_of(settings).name == name
    assert AlgorithmSettings(**settings.model_dump(mode="json")) == settings
    assert AlgorithmSettings(**settings.model_dump(mode="json", exclude_unset=True)) == settings


@pytest.mark.parametrize(
    ("name", "spelled_out"),
    [
        ("grpo", {}),
        ("dr_grpo", {"advantage": {"scale": "none"}, "normaliser": {"kind": "constant", "tokens": 10}}),
        ("rloo", {"advantage": {"baseline": "leave_one_out", "scale": "none"}}),
        ("reinforce", {"advantage": {"baseline": "none", "scale": "none"}}),
        ("dapo", {"loss": {"clip_high": 0.28}, "minibatches": 4, "dynamic_sampling": True}),
        ("cispo", {"loss": "cispo", "correction": "bypass"}),
        ("supervised", {"loss": "cross_entropy", "correction": "bypass"}),
    ],
)
def test_a_name_is_what_the_documentation_says(name: str, spelled_out: dict[str, Any]) -> None:
    """The keys that it stands for, one by one."""
    named = AlgorithmSettings(name=name, **LEFT_OPEN.get(name, {}))
    assert named.model_dump() == {**AlgorithmSettings(**spelled_out).model_dump(), "name": name}


def test_every_key_wins_over_the_name() -> None:
    """A key below one of the name's leaves its neighbours, another kind replaces it, and only what was given is set."""
    named = AlgorithmSettings(name="dapo", loss={"clip_low": 0.1}, minibatches=2)  # type: ignore[arg-type]
    assert named.loss.model_dump(exclude_unset=True) == {"kind": "clip", "clip_low": 0.1, "clip_high": 0.28}
    assert (named.minibatches, named.dynamic_sampling) == (2, True)
    assert named.model_fields_set == {"name", "loss", "minibatches"}
    assert AlgorithmSettings(name="dapo", loss="cispo").loss.model_dump(exclude_unset=True) == {"kind": "cispo"}
    with pytest.raises(ConfigError, match=r"name='dapoo' is not available; did you mean 'dapo'\? there are grpo, "):
        AlgorithmSettings(name="dapoo")


def test_bounds_that_do_not_act_are_named() -> None:
    """With one step on a batch the ratio to the weights it begins with is 1, whatever loss there is of it."""
    for loss in ({"clip_low": 0.1}, {"kind": "cispo", "clip_high": 1.0}):
        (idle,) = AlgorithmSettings(loss=loss).idle()
        assert idle.key in ("loss.clip_low", "loss.clip_high") and "with minibatches=1 and epochs=1" in idle.why
        assert not list(AlgorithmSettings(loss=loss, minibatches=2).idle())
        assert not list(AlgorithmSettings(loss=loss, epochs=2).idle())
        assert not list(AlgorithmSettings(loss=loss, correction="bypass").idle())


def test_a_name_of_which_nothing_is_left_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """In a configuration that has every key the name alone changes nothing; what was written under it is as it was."""
    written = AlgorithmSettings().model_dump(mode="json")
    assert AlgorithmSettings(**AlgorithmSettings(name="dapo").model_dump(mode="json")).minibatches == 4
    assert not caplog.text
    assert AlgorithmSettings(**{**written, "name": "dapo"}).minibatches == 1
    assert "algorithm.name=dapo has no effect: loss, minibatches, dynamic_sampling are given" in caplog.text
