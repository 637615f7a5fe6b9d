"""Options of the commands that start servers of others: those of `engine.args`, and how options are written.

Knows: command lines.  Knows not: which server, what its options mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ludus.errors import ConfigError


def own_options(args: Mapping[str, Any], ours: Mapping[str, str]) -> dict[str, Any]:
    """The options of `engine.args`, by the names that they have in Python.

    ours: options that Ludus sets, and what sets them. Raises ConfigError for one of these.
    """
    options = {name.removeprefix("--").replace("-", "_"): value for name, value in args.items()}
    for name in options:
        if name.removeprefix("no_") in ours:
            raise ConfigError(f"engine.args.{name} is set by {ours[name.removeprefix('no_')]}; remove it")
    return options


def option_words(options: Mapping[str, Any], *, has_negations: bool) -> Iterator[str]:
    """The options as arguments of a command line. Raises ConfigError for one without a value.

    has_negations: an option that is switched off is written with `--no-`; otherwise it is left out.
    """
    for name, value in options.items():
        flag = name.replace("_", "-")
        if value is False:
            yield from [f"--no-{flag}"] if has_negations else []
        elif value is True:
            yield f"--{flag}"
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield from (f"--{flag}", *map(str, value))
        elif value is None:
            raise ConfigError(f"engine.args.{name} has no value; an option without one is set by true")
        else:
            yield from (f"--{flag}", json.dumps(value) if isinstance(value, Mapping) else str(value))
