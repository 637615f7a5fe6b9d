"""What plays an agent: agents of kinds that the core does not know say it themselves, or a table says it by a method.

Knows: what tells the kinds apart.  Knows not: how any of them plays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ludus.agents.adapter import AgentAdapter
from ludus.agents.plain import FORMS, from_workflow
from ludus.errors import UserError
from ludus.settings import Settings, import_object


class AgentKind(Protocol):
    """Agents that are written for another system. Found by its import string, and loaded when it is needed.

    All of them ask the model by tokens, in the process of their session.
    """

    def __call__(self, workflow: Any, kwargs: Mapping[str, Any], settings: Settings | None) -> AgentAdapter:
        """What plays the agent, made with `kwargs`; None: the rows name theirs. settings: of the run, where there is
        one.

        Raises UserError where it cannot play.
        """


def kind_of(workflow: object, kinds: Mapping[str, str] | None = None) -> str | None:
    """Import string of the agent's kind: its own `agent_kind`, or that of a method that it has.

    None: it is an agent that reaches the model over HTTP.
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
    """The agent behind `workflow`, in any form of any kind. kwargs: of its class or function.

    settings: of the run. None: there is none, and every kind takes its defaults.
    kinds: by a method that an agent has the import string of its kind.
    may_block: it has a process of its own: it need not be async, and reaches the model by HTTP alone.
    Raises UserError that names what was got where it is no agent.
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
