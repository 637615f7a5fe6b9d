"""`ludus.play` for agents and rows of all families, even without a configuration."""

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
    """Play every row `gconfig.n_samples` times with the configured model; episodes are in the order of rows and
    samples.

    workflow, dataset: in every form that `Trainer` accepts. An agent's error is its episode's outcome.
    config: None: the default of every key.
    on_episode: called with each episode as it ends.
    """
    options: dict[str, Any] = {"workflow_kwargs": workflow_kwargs, "on_episode": on_episode}
    return play_configured(workflow, dataset, config=config or Config(), **options)
