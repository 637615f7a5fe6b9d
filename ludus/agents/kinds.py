"""Finds the adapter for an agent. For kinds unknown to the core, the agent names its kind, or one of its methods does.

Knows: what tells the kinds apart.  Knows not: how any of them plays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ludus.agents.adapter import AgentAdapter
from ludus.agents.plain import FORMS, from_workflow
from ludus.errors import UserError
from ludus.import_strings import import_object
from ludus.settings import Settings


class AgentKind(Protocol):
    """A kind of agents, written for another system. Named by its import string and loaded when needed.

    All such agents send token ids to the model, in the process of their session.
    """

    def __call__(self, workflow: Any, kwargs: Mapping[str, Any], settings: Settings | None) -> AgentAdapter:
        """The adapter that plays the agent, made with `kwargs`. workflow: None: each row names its agent. settings: of
        the run, if there is one.

        Raises UserError if the agent cannot be played.
        """


def kind_of(workflow: object, kinds: Mapping[str, str] | None = None) -> str | None:
    """Import string of the agent's kind: its attribute `agent_kind`, or the kind that one of its methods implies.

    None: an ordinary agent, which reaches the model over HTTP.
    """
    own = getattr(workflow, "agent_kind", None)
    if isinstance(own, str):
        return own
    return next((kind for method, kind in (kinds or {}).items() if callable(getattr(workflow, method, None))), None)


def load_kind(kind: str) -> AgentKind:
    found: AgentKind = import_object(kind)
    return found


def resolve_workflow(
    workflow: object,
    kwargs: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
    *,
    kinds: Mapping[str, str] | None = None,
    may_block: bool = False,
) -> AgentAdapter:
    """The adapter for `workflow`, in any form of any kind. kwargs: arguments of its class or function.

    settings: of the run. None: every kind uses its defaults.
    kinds: by method name: the import string of the kind of agents that have this method.
    may_block: the agent has a process of its own: it need not be async, and reaches the model only over HTTP.
    Raises UserError that describes `workflow` if it is not an agent.
    """
    if workflow is None:
        raise UserError(f"no workflow was given; pass {FORMS}")
    if isinstance(workflow, str):
        workflow = import_object(workflow)
    kind = kind_of(workflow, kinds)
    if kind is None:
        return from_workflow(workflow, dict(kwargs or {}), may_block=may_block)
    if may_block:
        raise UserError(
            f"{getattr(workflow, '__qualname__', type(workflow).__qualname__)} asks the model by tokens, inside this "
            "program; with rollout.agent.mode=subproc an agent reaches it by HTTP: "
            "`async def run(self, data, **extra_kwargs)`. Set rollout.agent.mode=inline"
        )
    return load_kind(kind)(workflow, kwargs or {}, settings)
