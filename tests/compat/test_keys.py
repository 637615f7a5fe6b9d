"""Tables of keys: names before patterns, values that do nothing, and what is told of the others."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import ludus.compat
from ludus.compat.config import Config
from ludus.compat.keys import Meaning, Table, fixed, hint, left_out, meaning_of, not_needed, renamed, to
from ludus.compat.verl.keys import KEYS
from ludus.errors import ConfigError
from ludus.settings import parse_override, with_value

TABLE: Table = {
    "a.size": to("model.size", "engine.size", convert=lambda value: value if value > 0 else None),
    "a.mode": fixed("async", note="nothing waits"),
    "a.own.*": to("b.*"),
    **not_needed("it is always so", "a.*"),
    **left_out("nobody does it", "c"),
}


@pytest.mark.parametrize(
    ("name", "value", "meaning"),
    [
        ("a.size", 3, Meaning("taken", ours={"model.size": 3, "engine.size": 3})),
        ("a.size", -1, Meaning("not needed")),
        ("a.mode", "async", Meaning("not needed", "nothing waits")),
        ("a.mode", "sync", Meaning("left out", "it is 'async' here, as nothing waits")),
        ("a.own.x.y", 1, Meaning("taken", ours={"b.x.y": 1})),
        ("a.other", 1, Meaning("not needed", "it is always so")),
        ("c", 1, Meaning("left out", "nobody does it")),
        ("d", 1, None),
    ],
)
def test_what_a_key_comes_to(name: str, value: Any, meaning: Meaning | None) -> None:
    """By its name, or by the first pattern that fits."""
    assert meaning_of(TABLE, name, value, {}) == meaning


def test_keys_are_renamed_where_they_stand() -> None:
    """Others stay, also those whose names hold dots."""
    data = {"a": {"size": 2, "own": {"x": {}}}, "e": {"f.g": 1}}
    assert renamed(TABLE, data, "verl", ()) == {
        "model": {"size": 2},
        "engine": {"size": 2},
        "b": {"x": {}},
        "e": {"f.g": 1},
    }


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"a": {"mode": "sync"}}, "a.mode='sync' is not possible: it is 'async' here"),
        ({"z": {"y": 1}}, "z.y has no counterpart here; leave it out"),
        ({"a": {"size": 2}, "model": {"size": 3}}, "which is given as 3 too; remove one"),
    ],
)
def test_what_cannot_be_is_named(data: dict[str, Any], said: str) -> None:
    """Another value than the one here, an unknown key of the family's, and a key under two names."""
    with pytest.raises(ConfigError, match=said):
        renamed(TABLE, data, "verl", ("z",))


FILES = sorted(Path(ludus.compat.__path__[0]).glob("*/keys.toml"))
_KEY = re.compile(r"(?<![\w./-])([a-z_]+(?:\.[a-z_]+)+)(?![\w/(*]|\.[a-z])")
"""A dotted name in a sentence; files, calls and patterns are none."""


def texts(value: Any) -> Iterator[str]:
    """What the tables say to a person: reasons that head names, notes, and what else there is."""
    for key, each in value.items() if isinstance(value, Mapping) else ():
        if key in ("note", "otherwise"):
            yield each
        else:
            yield from texts(each)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_a_hint_names_keys_that_are_there(file: Path) -> None:
    """Of Ludus, or of the family itself: a hint that leads nowhere is worse than none."""
    read = tomllib.loads(file.read_text(encoding="utf-8"))
    said = [*texts(read), *read.get("left_out", {}), *read.get("not_needed", {})]
    theirs = {name for text in _strings(read) for name in text.split()}
    sections = set(Config.model_fields)
    for text in said:
        for name in _KEY.findall(text):
            if name.partition(".")[0] in sections and name not in theirs:
                assert _is_key(name), f"{text!r} names {name}, which is no key"


def _strings(value: Any) -> Iterator[str]:
    for key, each in value.items() if isinstance(value, Mapping) else ():
        yield str(key)
        yield from [each] if isinstance(each, str) else _strings(each)


def _is_key(name: str) -> bool:
    """Whether Ludus knows it: what is wrong about a value that nothing can be is not that nobody knows the key."""
    path, _ = parse_override(f"{name}=0")
    try:
        Config(**with_value({}, path, object(), whole=name))
    except ConfigError as error:
        return "unknown key" not in str(error)
    return True


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("kl_loss_coef", "verl calls it 'actor_rollout_ref.actor.kl_loss_coef', which is 'algorithm.kl.beta' here."),
        ("actor.kl_loss_coef", "which is 'algorithm.kl.beta' here."),
        ("ppo_mini_batch_size", "which is 'algorithm.minibatches' here."),
        ("rollout.name", "verl calls it 'actor_rollout_ref.rollout.name': engine.kind chooses the engine."),
        ("rollout.temperature", "which is 'gconfig.temperature' here."),
        ("trainer.minibatches", "did you mean 'algorithm.minibatches'?"),
        ("gconfig.n_sample", "did you mean 'gconfig.n_samples'?"),
        ("agent_loop_config_path", "did you mean 'rollout.agent.agent_loop_config_path'?"),
    ],
)
def test_a_part_of_a_key_of_verls_leads_to_its_counterpart(key: str, said: str) -> None:
    """Wherever it is given; Ludus's own keys come first where one is meant."""
    with pytest.raises(ConfigError) as raised:
        ludus.load_config(None, [f"{key}=1"])
    assert said in str(raised.value)


@pytest.mark.parametrize("name", sorted({name.rpartition(".")[2] for name in KEYS} - {"*"}))
def test_such_a_hint_names_keys_that_are_there(name: str) -> None:
    found = re.search(r"which is '([^']+)' here", hint(KEYS, name, "verl"))
    assert found is None or _is_key(found[1].removesuffix(".*"))
