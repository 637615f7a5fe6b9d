"""What a training script of AReaL calls: `load_expr_config`, and `PPOTrainer` as a context manager.

Knows: command lines.  Knows not: how anything is trained.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ludus.api.trainer import Trainer
from ludus.config import Config, load_config
from ludus.errors import ConfigError


class PPOTrainer(Trainer):
    """`ludus.Trainer`, which needs no closing, for scripts that close it."""

    def __enter__(self) -> PPOTrainer:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to close: `train` and `evaluate` leave nothing behind."""


def load_expr_config(argv: Sequence[str], config_cls: type[Config] = Config) -> tuple[Config, str]:
    """The configuration of `--config FILE a.b=value …`, and the file's path.

    Raises ConfigError for keys that Ludus does not have; `ludus import areal` makes a file that it reads.
    """
    assert issubclass(config_cls, Config), "configurations of AReaL's names are Ludus's own"
    parser = argparse.ArgumentParser(description="Train with a configuration.")
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML file of the run")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_intermixed_args(list(argv))
    try:
        config = load_config(Path(given.config), [override.removeprefix("+") for override in given.overrides])
    except ConfigError as error:
        error.add_note(f"if the file is AReaL's: ludus import areal {given.config}")
        raise
    return config, given.config
