"""What a training script of AReaL calls: `load_expr_config`, and `PPOTrainer` as a context manager.

Knows: command lines.  Knows not: how anything is trained.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from ludus.api.accept import AcceptFn
from ludus.api.live import watch
from ludus.api.trainer import Trainer
from ludus.compat.config import Config, load_config
from ludus.errors import ConfigError
from ludus.loop.observer import RunSummary


class PPOTrainer(Trainer):
    """`ludus.Trainer` with the arguments in AReaL's order; it needs no closing, for scripts that close it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to close: `train` leaves nothing behind."""

    def train(  # type: ignore[override]
        self,
        workflow: object = None,
        eval_workflow: object = None,
        workflow_kwargs: Mapping[str, Any] | None = None,
        eval_workflow_kwargs: Mapping[str, Any] | None = None,
        dynamic_filter_fn: AcceptFn | str | None = None,
        **options: Any,
    ) -> RunSummary:
        """Train until the configuration says it is enough, and show on stderr how far it is.

        dynamic_filter_fn: `should_accept_fn` of `ludus.Trainer`, whose other arguments are the options; an `observer`
        among them watches instead.
        """
        evaluated = {"eval_workflow": eval_workflow, "eval_workflow_kwargs": eval_workflow_kwargs}
        with watch(Console(stderr=True), self.config.name) as observer:
            named = {**evaluated, "should_accept_fn": dynamic_filter_fn, "observer": observer, **options}
            return super().train(workflow, workflow_kwargs, **named)

    def close(self) -> None:
        """As leaving the block."""


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
