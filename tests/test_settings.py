"""Settings: YAML and overrides, and errors that say where, what and what else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml

from ludus.errors import ConfigError, UserError
from ludus.settings import (
    Choice,
    OneOf,
    Settings,
    did_you_mean,
    dump_settings,
    nearest,
    read_yaml,
    with_overrides,
)


def load_settings(cls: type[Any], path: Path | None, overrides: Sequence[str] = ()) -> Any:
    return cls(**with_overrides({} if path is None else read_yaml(path), overrides))


class Inner(Settings):
    rank: int = 3
    scale: float | None = None


class Outer(Settings):
    inner: Inner | None = None
    other: Inner = Inner()
    rate: float = 1.0


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    """A value comes from the override, else from the file, else from the default."""
    path = tmp_path / "run.yaml"
    path.write_text("rate: 2e-5\nother: {rank: 7, scale: 0.5}\n")
    settings = load_settings(Outer, path, ["other.rank=8", "inner.scale=2"])
    assert settings == Outer(rate=2e-5, other=Inner(rank=8, scale=0.5), inner=Inner(scale=2.0))


def test_dumped_settings_read_back(tmp_path: Path) -> None:
    """What `dump_settings` writes, is read as the same settings."""
    settings = Outer(inner=Inner(rank=9))
    path = tmp_path / "dump.yaml"
    path.write_text(dump_settings(settings))
    assert load_settings(Outer, path) == settings


class Named(Settings):
    name: str = ""
    rates: tuple[float, ...] = ()
    args: Mapping[str, Any] = {}


@pytest.mark.parametrize(
    "override", ["name=2026-11-01", "rates=[1e-8, -2E3, .5e1]", "args.day=2026-11-01", "args.rate='1e-8'"]
)
def test_numbers_are_numbers_and_days_are_texts(override: str, tmp_path: Path) -> None:
    """`1e-8` needs no point, `2026-11-01` no quotes; both come back from a dump as they were."""
    settings = load_settings(Named, None, [override])
    expected = {
        "name": Named(name="2026-11-01"),
        "rates": Named(rates=(1e-8, -2e3, 5.0)),
        "args.day": Named(args={"day": "2026-11-01"}),
        "args.rate": Named(args={"rate": "1e-8"}),
    }
    assert settings == expected[override.partition("=")[0]]
    (tmp_path / "dump.yaml").write_text(dump_settings(settings))
    assert load_settings(Named, tmp_path / "dump.yaml") == settings


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("other.rnk=1", "unknown key 'other.rnk'; did you mean 'other.rank'?"),
        ("rank=1", "unknown key 'rank'; did you mean 'inner.rank'?"),
        ("inner.rnk=1", "unknown key 'inner.rnk'; did you mean 'inner.rank'?"),
        ("other.rank=many", "other.rank='many' is not possible"),
        ("rate.deep=1", "unknown key 'rate.deep'|rate={'deep': 1} is not possible"),
        ("rate", "must have the form key=value"),
    ],
)
def test_bad_overrides_are_explained(override: str, message: str) -> None:
    """Each bad override is one ConfigError that names its path and what is nearest or allowed."""
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        load_settings(Outer, None, [override])


def test_errors_of_nested_values_name_the_whole_path() -> None:
    """Settings made in Python explain themselves as those from a file do."""
    with pytest.raises(ConfigError, match=r"unknown key 'other.rnk'; did you mean 'other.rank'"):
        Outer(other={"rnk": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "error"), [("[1, 2]", ConfigError), ("a: [", ConfigError), (None, UserError)])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str | None, error: type[Exception]) -> None:
    """A list, broken YAML and a missing file are refused by name."""
    path = tmp_path / "run.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(error, match=r"run.yaml"):
        load_settings(Outer, path)


def aliases(levels: int) -> str:
    nine = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, levels))
    return f"a0: &a0 [x, x, x, x, x, x, x, x, x]\n{nine}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (aliases(12), r"would have 3[0-9,]+ values with its aliases written out"),
        ("a: &a {b: *a}", "an alias stands in what it names"),
        ("a: " + "[" * 20_000, "nested too deep"),
        ("a: " + "1" * 5000, "not valid YAML: .*digits"),
    ],
    ids=["aliases of aliases", "an alias of itself", "lists in lists", "digits"],
)
def test_a_text_that_is_too_much_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """Before anything is made of it; what a few aliases share is well."""
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_yaml(path)
    path.write_text(aliases(3))
    assert len(read_yaml(path)["a2"]) == 9


def test_is_set_tells_a_change_from_a_mention() -> None:
    """A key counts as set when its value was given and differs from the default."""
    assert Outer(other=Inner(rank=4)).is_set("other")
    assert not Outer(other=Inner(rank=3)).is_set("other")
    assert not Outer().is_set("rate")


def test_nearest_knows_when_nothing_is_alike() -> None:
    """The nearest name is a likely misspelling, or None."""
    assert nearest("batchsize", ["batch_size", "path"]) == "batch_size"
    assert nearest("zzz", ["batch_size", "path"]) is None


class Clip(Choice):
    kind: Literal["clip"] = "clip"
    low: float = 0.2
    high: float = 0.2


class Cispo(Choice):
    kind: Literal["cispo"] = "cispo"
    high: float = 4.0


class Own(Choice):
    kind: Literal["own"] = "own"
    path: str


class Chosen(Settings):
    loss: Annotated[Choice, OneOf({"clip": Clip, "cispo": Cispo, "own": Own}, "clip", own="own")] = Clip()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("cispo", Cispo()),
        ("my.py:loss", Own(path="my.py:loss")),
        ({"low": 0.1}, Clip(low=0.1)),
        ({"kind": "cispo", "high": 1}, Cispo(high=1.0)),
        (Cispo(high=3.0), Cispo(high=3.0)),
    ],
)
def test_a_choice_is_read_from_what_tells_its_kind(given: Any, expected: Choice) -> None:
    """A bare kind, an import string, a mapping with or without `kind`, settings; each comes back from YAML and JSON."""
    chosen = Chosen(loss=given)
    assert chosen.loss == expected
    assert Chosen(**yaml.safe_load(dump_settings(chosen))) == chosen
    assert Chosen(**chosen.model_dump(mode="json", exclude_unset=True)) == chosen


def test_a_bare_kind_takes_keys_below_it() -> None:
    """`loss=cispo loss.high=3` says one thing after the other; a text that is no choice is refused as before."""
    assert load_settings(Chosen, None, ["loss=cispo", "loss.high=3"]).loss == Cispo(high=3.0)
    with pytest.raises(ConfigError, match=r"^rate=\{'kind': 'fast', 'deep': 1\} is not possible"):
        load_settings(Outer, None, ["rate=fast", "rate.deep=1"])


def test_a_key_of_another_kind_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """So that `loss=cispo` on the command line does not break a file that sets the bounds of clip."""
    assert Chosen(loss={"kind": "cispo", "low": 0.1}).loss == Cispo()  # type: ignore[arg-type]
    assert "low=0.1 does not act: kind is 'cispo', and it is a key of 'clip'" in caplog.text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("clap", r"loss: 'clap' is not available; did you mean 'clip'\? there are clip, cispo, own"),
        ({"hihg": 1}, r"unknown key 'loss.hihg'; did you mean 'loss.high'\? Known below 'loss': kind, low, high, path"),
        ({"high": "x"}, r"^loss.high='x' is not possible"),
        (3, r"loss: must be one of clip, cispo, own"),
    ],
)
def test_a_choice_that_cannot_be_is_explained_without_its_kind(given: Any, message: str) -> None:
    """The path in an error is that of the file, in which no kind stands."""
    with pytest.raises(ConfigError, match=message):
        Chosen(loss=given)


@pytest.mark.parametrize(
    ("name", "end"),
    [("modle", "; did you mean 'model'?"), ("something else", "."), ("model", "; did you mean 'model'?")],
)
def test_the_end_of_a_clause_is_never_lost(name: str, end: str) -> None:
    """What follows is a sentence of its own, whether there is something near or not."""
    assert did_you_mean(name, ["model", "engine"]) == end
