"""Adapter of AReaL's rollout workflows, which ask the model by token ids: `arun_episode(engine, data)`.

Knows: the record, what a workflow may return.  Knows not: groups, training.
Invariant: whatever a workflow returns, tokens, logprobs and versions are taken from the record; only sampled tokens can
be trained.
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
        """Nothing to do: the workflow was made with everything it needs."""

    async def close(self) -> None:
        """Nothing to do: a workflow closes what it opened itself."""

    async def play(self, data: Mapping[str, Any], context: EpisodeContext) -> object:
        """Run the workflow; returns its result as rewards of recorded turns."""
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
    """The workflow's result in a form that `reward.read` accepts. The reward of a row is the return of all turns that
    the row marks.

    Raises UserError for rows that are inconsistent, or not in the record.
    """
    if not isinstance(returned, Mapping) or not returned:
        return returned
    if "input_ids" in returned:
        return claim_rows(record, token_rows(returned), are_returns=True)
    if all(isinstance(item, ExportedInteraction) for item in returned.values()):
        return claim_interactions(record, list(returned.values()))
    return returned
