"""`ludus.play`: the core's, for agents and rows of every family where no configuration is given too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ludus.api.play import play as play_configured
from ludus.compat.config import Config
from ludus.config import Config as CoreConfig
from ludus.types import Episode


def play(
    workflow: object,
    dataset: object,
    *,
    config: CoreConfig | None = None,
    workflow_kwargs: Mapping[str, Any] | None = None,
    on_episode: Callable[[Episode], None] = lambda _: None,
) -> tuple[Episode, ...]:
    """Every row played `gconfig.n_samples` times by the configured model, in the order of rows and samples.

    workflow, dataset: in every form that `Trainer` takes. An agent's fault is its episode's outcome.
    config: None: the default of every key.
    on_episode: called with each episode as it ends.
    """
    options: dict[str, Any] = {"workflow_kwargs": workflow_kwargs, "on_episode": on_episode}
    return play_configured(workflow, dataset, config=config or Config(), **options)
