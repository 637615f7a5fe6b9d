"""Which family an agent belongs to, and the door that plays it.

Knows: what tells the families apart.  Knows not: how any of them plays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ludus.agents.adapter import Door
from ludus.agents.plain import FORMS, from_workflow
from ludus.compat.areal.adapter import from_rollout_workflow, is_rollout_workflow
from ludus.compat.realhf.adapter import from_queue, is_queue_agent
from ludus.compat.verl.adapter import from_loop
from ludus.compat.verl.base import AgentLoopBase
from ludus.compat.verl.plan import LoopPlan
from ludus.errors import UserError
from ludus.settings import import_object


def resolve_workflow(
    workflow: object,
    kwargs: Mapping[str, Any] | None = None,
    *,
    loops: LoopPlan | None = None,
    may_block: bool = False,
) -> Door:
    """The agent behind `workflow`, in any form of any family. kwargs: of its class or function.

    loops: what the configuration says about agent loops. None: nothing.
    may_block: it has a process of its own, and need not be async.
    Raises UserError that names what was got where it is no agent.
    """
    if workflow is None:
        raise UserError(f"no workflow was given; pass {FORMS}")
    if isinstance(workflow, str):
        workflow = import_object(workflow)
    if isinstance(workflow, type) and issubclass(workflow, AgentLoopBase):
        return from_loop(workflow, kwargs or {}, loops or LoopPlan())
    if isinstance(workflow, AgentLoopBase):
        raise UserError(
            f"an agent loop is given as its class, {type(workflow).__qualname__}, not as an object: each trajectory "
            "has one of its own; give constructor arguments as workflow_kwargs"
        )
    if is_rollout_workflow(workflow):
        return from_rollout_workflow(workflow, kwargs or {})
    if is_queue_agent(workflow):
        return from_queue(workflow, kwargs or {})
    return from_workflow(workflow, dict(kwargs or {}), may_block=may_block)
