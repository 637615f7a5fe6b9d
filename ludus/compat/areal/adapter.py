"""Workflows that ask the model by token ids: `arun_episode(engine, data)` plays an episode.

Knows: the record, what a workflow may return.  Knows not: groups, training.
Invariant: whatever a workflow returns, its tokens, logprobs and versions are taken from the record; a token that
nobody sampled cannot be trained.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ludus.agents.adapter import EpisodeContext
from ludus.agents.plain import Row, construct, refuse_kwargs
from ludus.compat.areal.openai_client import ExportedInteraction, claim_interactions
from ludus.compat.areal.rollout import EpisodeEngine, token_rows
from ludus.episodes.claim import claim_rows
from ludus.errors import UserError
from ludus.settings import Settings
from ludus.types import SessionRecord


@dataclass(frozen=True, slots=True)
class RolloutWorkflowAdapter:
    """A rollout workflow, ready to play."""

    name: str
    workflow: Any

    async def setup(self) -> None:
        """What a workflow needs was made with it."""

    async def close(self) -> None:
        """What it made is its own to close."""

    async def play(self, data: Mapping[str, Any], context: EpisodeContext) -> object:
        """What the workflow returned, as rewards of recorded turns."""
        engine = EpisodeEngine(context)
        returned = await self.workflow.arun_episode(engine, Row(copy.deepcopy(dict(data))))
        return read_handback(returned, engine.session.snapshot())


def from_rollout_workflow(workflow: Any, kwargs: Mapping[str, Any], _: Settings | None) -> RolloutWorkflowAdapter:
    """The adapter of a class, which is instantiated here, once, with `kwargs`, or of an instance.

    Raises UserError if it cannot be made, or its `arun_episode` is not async or takes other arguments.
    """
    if inspect.isclass(workflow):
        name, workflow = workflow.__qualname__, construct(workflow, kwargs)
    else:
        refuse_kwargs(workflow, kwargs)
        name = type(workflow).__qualname__
    method = workflow.arun_episode
    if not inspect.iscoroutinefunction(method):
        raise UserError(f"{name}.arun_episode must be async (`async def`)")
    try:
        inspect.signature(method).bind(None, {})
    except TypeError as error:
        raise UserError(f"{name}.arun_episode must take (engine, data): {error}") from None
    return RolloutWorkflowAdapter(name, workflow)


def read_handback(returned: object, record: SessionRecord) -> object:
    """What `reward.read` reads. Rewards of rows are returns: each belongs to the turns that its row marks.

    Raises UserError for rows that do not fit together, or that are not in the record.
    """
    if not isinstance(returned, Mapping) or not returned:
        return returned
    if "input_ids" in returned:
        return claim_rows(record, token_rows(returned), are_returns=True)
    if all(isinstance(item, ExportedInteraction) for item in returned.values()):
        return claim_interactions(record, list(returned.values()))
    return returned
