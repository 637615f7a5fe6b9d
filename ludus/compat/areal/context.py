"""What a workflow may ask about the episode it plays: which it is, where its numbers go, clients for other hosts.

Knows: the episode that plays here.  Knows not: how it is played.
Used as a module: `workflow_context.get()`, `await workflow_context.get_httpx_client()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ludus.agents.adapter import EpisodeContext, current_episode
from ludus.errors import UserError


@dataclass(frozen=True, slots=True)
class WorkflowContext:
    """Which episode is played."""

    is_eval: bool = False
    task_id: str | None = None
    """The row. None: nothing is being played."""


def get() -> WorkflowContext:
    """The episode that is played here; outside of one it is no evaluation, and no row."""
    context = current_episode()
    return WorkflowContext() if context is None else WorkflowContext(context.info.is_eval, context.info.task_id)


def stat_scope() -> str:
    """`rollout`, or `eval-rollout` in an evaluation."""
    return "eval-rollout" if get().is_eval else "rollout"


async def get_httpx_client() -> Any:
    """An `httpx.AsyncClient` for tools and rewards, which all episodes share; it is closed when the agents end."""
    return await _playing("get_httpx_client").clients.httpx_client()


async def get_aiohttp_session() -> Any:
    """An `aiohttp.ClientSession`, otherwise as `get_httpx_client`. Raises UserError if aiohttp is not installed."""
    return await _playing("get_aiohttp_session").clients.aiohttp_session()


def _playing(name: str) -> EpisodeContext:
    context = current_episode()
    if context is None:
        raise UserError(f"workflow_context.{name}() works while an episode is played, in its own tasks; none is")
    return context
