"""Finds the datasets of a run: one or several by name, in files, in functions, or passed in Python.

Knows: which keys of the configuration name rows.  Knows not: who plays them, in which order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ludus.api.rows import load_rows
from ludus.errors import ConfigError
from ludus.loop.settings import TrainDatasetSettings, ValidDatasetSettings
from ludus.rollout.mixture import Row, Source


def train_sources(settings: TrainDatasetSettings, given: object = None) -> list[Source]:
    """The datasets to train on. given: what was passed in Python; None: the configuration names them.

    Raises ConfigError if no rows were given, UserError if they cannot be read.
    """
    rows = _rows_by_name(settings, given, "train_dataset")
    if not rows:
        raise ConfigError("no training rows were given: set train_dataset.path, or pass train_dataset=… in Python")
    weights = {name: source.weight for name, source in settings.mix.items()}
    return [Source(each, name, weights.get(name) or float(len(each))) for name, each in rows.items()]


def valid_sources(settings: ValidDatasetSettings, given: object = None) -> list[Source]:
    """The held-out datasets, found as by `train_sources`; empty if none were given."""
    found = _rows_by_name(settings, given, "valid_dataset")
    counts = {name: min(len(rows), settings.max_rows or len(rows)) for name, rows in found.items()}
    return [Source([rows[idx] for idx in range(counts[name])], name) for name, rows in found.items()]


def _rows_by_name(
    settings: TrainDatasetSettings | ValidDatasetSettings, given: object, key: str
) -> dict[str, Sequence[Row]]:
    """Rows by dataset name, '' if there is only one. Empty: no rows were given."""
    if not settings.mix:
        source = settings.path if given is None else given
        return {} if source is None else {"": load_rows(source, f"{key}.path")}
    names = ", ".join(settings.mix)
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"{key}.mix has the sources {names}: pass {key}={{name: rows}}, or leave it out")
    passed = dict(given or {})
    unknown = [str(name) for name in passed if name not in settings.mix]
    if unknown:
        raise ConfigError(f"{key}={{…}} has rows for {', '.join(unknown)}, and {key}.mix has the sources {names}")
    rows = {}
    for name, each in settings.mix.items():
        if name not in passed and each.path is None:
            raise ConfigError(f"{key}.mix.{name} has no rows: set {key}.mix.{name}.path, or pass {key}={{{name!r}: …}}")
        rows[name] = load_rows(passed.get(name, each.path), f"{key}.mix.{name}.path")
    return rows
