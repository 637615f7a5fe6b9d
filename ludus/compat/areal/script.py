"""The entry points of AReaL's training scripts: `load_expr_config`, and `PPOTrainer` as a context manager.

Knows: command lines.  Knows not: how anything is trained.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Self

from ludus.api.accept import AcceptFn
from ludus.api.trainer import Trainer
from ludus.compat.areal.experiment import Section, SectionT, config_of, read_experiment, tell
from ludus.compat.config import Config
from ludus.compat.importing.interpolate import read_yaml
from ludus.compat.members import with_members
from ludus.compat.names import here
from ludus.errors import UserError
from ludus.loop.observer import RunSummary
from ludus.loop.settings import EvalSettings
from ludus.runs.store import RunStore

logger = logging.getLogger(__name__)


@with_members("areal", "trainer.rl_trainer.PPOTrainer")
class PPOTrainer(Trainer):
    """`ludus.Trainer` with AReaL's configurations and order of arguments. It may be closed, but need not be."""

    def __init__(self, config: Any, train_dataset: object = None, valid_dataset: object = None) -> None:
        """config: an object of one of AReaL's classes or a subclass of one, or a configuration of Ludus.

        Raises ConfigError for an invalid value.
        """
        self._resume = False
        self._is_areals = isinstance(config, Section)
        if isinstance(config, Section):
            given = {"train_dataset": train_dataset, "valid_dataset": valid_dataset}
            rows_given = [name for name, rows in given.items() if rows is not None]
            num_rows = _num_rows(train_dataset)
            tell(config, rows_given, num_rows)
            self._resume = vars(config)["recover"].mode in ("on", "auto", True)  # YAML's `on` is true
            config = _without_idle_eval(config_of(config, rows_given, num_rows), valid_dataset)
        super().__init__(config, train_dataset, valid_dataset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close: `train` releases all its resources."""

    def train(  # type: ignore[override]
        self,
        workflow: object = None,
        eval_workflow: object = None,
        workflow_kwargs: Mapping[str, Any] | None = None,
        eval_workflow_kwargs: Mapping[str, Any] | None = None,
        dynamic_filter_fn: AcceptFn | str | None = None,
        total_epochs: int | None = None,
        **options: Any,
    ) -> RunSummary:
        """Train as configured, with progress output in the terminal, or on stderr if there is none.

        total_epochs: overrides the configuration's `total_train_epochs`.
        dynamic_filter_fn: `should_accept_fn` of `ludus.Trainer`. options: other arguments of it; an `observer` replaces
        the progress output, and `resume` overrides AReaL's `recover.mode`.
        """
        if total_epochs is not None and total_epochs < 1:
            raise UserError(f"total_epochs={total_epochs} must be at least 1; leave it out for the configuration's")
        if total_epochs is not None and self.config.total_train_steps is not None:
            logger.warning("total_epochs=%d has no effect: total_train_steps sets when to stop", total_epochs)
        elif total_epochs is not None:
            self.config = self.config.model_copy(update={"total_train_epochs": total_epochs})
        if self._is_areals and not options.get("resume", self._resume) and RunStore.is_there(self.config.folder):
            raise UserError(
                f"a run named {self.config.name!r} is in {str(self.config.folder)!r} already; continue it with "
                "recover.mode=auto, or choose another trial_name"
            )
        evaluated = {"eval_workflow": here(eval_workflow), "eval_workflow_kwargs": eval_workflow_kwargs}
        if eval_workflow is not None and not self.config.eval.is_asked:
            logger.warning("eval_workflow plays nothing: no evaluation is asked for; set evaluator.freq_steps")
            evaluated = {}
        shown = {"progress": "observer" not in options, "resume": self._resume}
        accepted = {"should_accept_fn": dynamic_filter_fn}
        return super().train(here(workflow), workflow_kwargs, **{**evaluated, **accepted, **shown, **options})

    def close(self) -> None:
        """The same as leaving the block."""


def _num_rows(dataset: object) -> int | None:
    """None: not known before they are loaded."""
    return len(dataset) if isinstance(dataset, Sized) and not isinstance(dataset, str | Mapping) else None


def _without_idle_eval(config: Config, valid_dataset: object) -> Config:
    """The configuration without evaluations if there are no held-out rows, as in AReaL."""
    held_out = config.valid_dataset
    if valid_dataset is not None or held_out.path or held_out.mix or not config.eval.is_asked:
        return config
    logger.warning("evaluator plays nothing: there is no valid_dataset")
    return config.model_copy(update={"eval": EvalSettings()})


def load_expr_config(argv: Sequence[str], config_cls: type[SectionT]) -> tuple[SectionT, str]:
    """The configuration of `--config FILE a.b=value …`, and the file's path.

    config_cls: a subclass of one of AReaL's dataclasses; keys of Ludus may be given besides AReaL's and its own.
    Raises UserError if there is no such file, ConfigError for an unknown key or an invalid value.
    """
    parser = argparse.ArgumentParser(description="Train with a configuration.")
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML file of the run")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    # argv may begin with the script's name, as with AReaL's launchers.
    given = parser.parse_intermixed_args(list(argv[1:] if argv and argv[0].endswith(".py") else argv))
    return read_experiment(config_cls, read_yaml(Path(given.config), given.overrides)), given.config
