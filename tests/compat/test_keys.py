"""Tables of keys: names before patterns, values that do nothing, and what is told of the others."""

from __future__ import annotations

from typing import Any

import pytest

from ludus.compat.keys import Meaning, Table, fixed, left_out, meaning_of, not_needed, renamed, to
from ludus.errors import ConfigError

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
