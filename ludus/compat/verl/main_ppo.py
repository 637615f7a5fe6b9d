"""`python -m verl.trainer.main_ppo key=value …`: trains from verl's command line, including Hydra's options.

Where verl's defaults change what is trained, they are the defaults here too.

Knows: command lines, files that Hydra composes.  Knows not: what any key means, how anything is trained.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ludus.api.live import watch
from ludus.api.trainer import Trainer
from ludus.compat import overrides
from ludus.compat.config import Config
from ludus.compat.importing.interpolate import resolved
from ludus.compat.keys import nested
from ludus.compat.verl.defaults import DEFAULTS, with_defaults
from ludus.errors import ConfigError, UserError
from ludus.loop.observer import RunSummary
from ludus.settings import merged, parse_override, read_yaml, with_value

logger = logging.getLogger(__name__)

OWN_DEFAULTS = ("ppo_trainer", "ppo_megatron_trainer")
"""Names of verl's own default files, in whose place defaults.py stands."""
_ESCAPED = re.compile(r"\\([\\()\[\]{}:=, ])")
"""What Hydra reads as the character alone, in a value without quotes, which then is a text."""


def main(arguments: Sequence[str] | None = None) -> RunSummary:
    """Train as given by the command line, with progress on stderr; an existing run of that name is resumed.

    arguments: None: those of this process.
    Raises ConfigError for invalid keys, UserError for a missing file.
    """
    values = read_command_line(sys.argv[1:] if arguments is None else arguments)
    values = with_defaults(values, overrides.settings())
    mode = values.get("trainer", {}).get("resume_mode", "auto")
    config = Config.read(values)
    with watch(Console(stderr=True), config.name) as observer:
        return Trainer(config).train(resume=mode == "auto" and config.folder.exists(), observer=observer)


def read_command_line(arguments: Sequence[str]) -> dict[str, Any]:
    """verl's keys with their values: those of the files that Hydra would compose, overridden by `key=value`."""
    parser = argparse.ArgumentParser(prog="verl.trainer.main_ppo", description="Train with verl's keys.")
    parser.add_argument("--config-path", "-cp", "--config-dir", "-cd", metavar="FOLDER", help="where the file lies")
    parser.add_argument("--config-name", "-cn", metavar="NAME", help="the file, without .yaml")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_intermixed_args(list(arguments))
    values: dict[str, Any] = {}
    if given.config_name is not None and given.config_name.removesuffix(".yaml") not in OWN_DEFAULTS:
        values = _composed(Path(given.config_path or ".").expanduser(), given.config_name.removesuffix(".yaml"), ())
    for override in given.overrides:
        values = _overridden(values, override)
    return resolved(values, nested({tuple(name.split(".")): value for name, value in DEFAULTS.items()}))


def _overridden(values: Mapping[str, Any], override: str) -> dict[str, Any]:
    """Apply an override: `key=value`, `+key=value`, `++key=value`, or `~key`, which removes a key."""
    if override.startswith("~"):
        return _without(values, override[1:].partition("=")[0].split("."))
    key, _, text = override.lstrip("+").partition("=")
    if _ESCAPED.search(text) and text[0] not in "'\"":
        path, value = parse_override(f"{key}=")[0], _ESCAPED.sub(r"\1", text)
    else:
        path, value = parse_override(override.lstrip("+"))
    return with_value(values, path, value, whole=".".join(path))


def _without(values: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    head, rest = path[0], path[1:]
    if head not in values or (rest and not isinstance(values[head], Mapping)):
        raise ConfigError(f"'~…{head}' takes away a key that is not given; leave it out")
    kept = {key: value for key, value in values.items() if key != head}
    return {**kept, head: _without(values[head], rest)} if rest else kept


def _composed(folder: Path, name: str, seen: tuple[Path, ...]) -> dict[str, Any]:
    """A file of Hydra's with those of its `defaults` below it; verl's own default file is left out."""
    path = folder / f"{name}.yaml"
    if path in seen:
        raise ConfigError(f"the defaults {' → '.join(str(each) for each in (*seen, path))} go round in a circle")
    values = read_yaml(path)
    values.pop("hydra", None)
    whole: dict[str, Any] = {}
    own_place = False
    for entry in values.pop("defaults", []):
        if entry == "_self_":
            own_place, whole = True, merged(whole, values)
        elif entry not in OWN_DEFAULTS:
            whole = merged(whole, _default(folder, entry, (*seen, path)))
    return whole if own_place else merged(whole, values)


def _default(folder: Path, entry: Any, seen: tuple[Path, ...]) -> dict[str, Any]:
    """`name`, or `{group@place: name}` of a folder below."""
    if isinstance(entry, str):
        return _composed(folder, entry, seen)
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((where, name),) = entry.items()
        group, _, place = str(where).removeprefix("override ").partition("@")
        if name is None:
            return {}
        below = _composed(folder / group, str(name), seen)
        return with_value({}, tuple((place or group.replace("/", ".")).split(".")), below, whole=str(where))
    raise UserError(f"{seen[-1]}: defaults has the entry {entry!r:.100}, which is neither a name nor a group's")
