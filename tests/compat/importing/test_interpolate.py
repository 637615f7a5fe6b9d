"""YAML with references, as OmegaConf reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ludus.compat.importing.interpolate import leaves, read_yaml
from ludus.errors import ConfigError, UserError


def read(folder: Path, text: str, *overrides: str) -> dict[str, Any]:
    path = folder / "config.yaml"
    path.write_text(text)
    return read_yaml(path, overrides)


def test_references_are_values_texts_and_whole_mappings(tmp_path: Path) -> None:
    """Of the type they point at; inside a text, as text; through each other."""
    found = read(tmp_path, "a:\n  b: 3\n  c: ${d}\nd: [1, '${a.b}']\ne: ${a}\nf: run-${a.b}-${g}\ng: ${a.b}")
    assert found["a"] == {"b": 3, "c": [1, 3]}
    assert (found["e"], found["f"], found["g"]) == (found["a"], "run-3-3", 3)


def test_numbers_are_read_as_omegaconf_reads_them(tmp_path: Path) -> None:
    """`1e-8` is a number, which YAML 1.1 takes for a text."""
    assert read(tmp_path, "a: 1e-8\nb: 1.70e-5\nc: -2E3\nd: 12\ne: 1e\nf: v1") == {
        "a": 1e-8,
        "b": 1.7e-5,
        "c": -2000.0,
        "d": 12,
        "e": "1e",
        "f": "v1",
    }


def test_what_points_outside_stays_as_it_is(tmp_path: Path) -> None:
    """Another resolver, or a key or a variable that is not there."""
    for text in ("${oc.select:c.d}", "x-${c.d}", "${oc.env:NO_SUCH_VARIABLE}"):
        assert read(tmp_path, f"a: {text}") == {"a": text}


def test_variables_of_the_environment_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As OmegaConf reads them, with a default for those that are not set."""
    monkeypatch.setenv("DATA", "rows")
    text = "a: ${oc.env:DATA}/train.parquet\nb: ${oc.env:NO_SUCH_VARIABLE, some}\nc: ${b}-${oc.env:DATA,other}"
    assert read(tmp_path, text) == {"a": "rows/train.parquet", "b": "some", "c": "some-rows"}


def test_overrides_come_before_references(tmp_path: Path) -> None:
    """As on the original's command line, `+` for new keys included."""
    found = read(tmp_path, "a: {b: 1}\nc: ${a.b}", "a.b=2", "+d.e=[1, 2]")
    assert found == {"a": {"b": 2}, "c": 2, "d": {"e": [1, 2]}}


@pytest.mark.parametrize(
    ("text", "overrides", "said"),
    [
        ("a: ${b}\nb: ${a}", (), "go round in a circle"),
        ("- 1", (), "must hold a mapping"),
        ("a: [", (), "is not valid YAML"),
        ("a: 1", ("a",), "must have the form key=value"),
        ("a: 1", ("a.b=2",), "'a' holds the value 1"),
        ("a: 1", ("a=[",), "the value is not valid YAML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, overrides: tuple[str, ...], said: str) -> None:
    """Each with what was got."""
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, text, *overrides)


def test_a_missing_file_is_the_users_error(tmp_path: Path) -> None:
    """It is named."""
    with pytest.raises(UserError, match="cannot read the configuration"):
        read_yaml(tmp_path / "no.yaml")


def test_leaves_are_dotted() -> None:
    """A list is a value, and so is nothing."""
    assert leaves({"a": {"b": 1, "c": {"d": None}}, "e": [1]}) == {"a.b": 1, "a.c.d": None, "e": [1]}
