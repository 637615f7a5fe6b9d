"""Gives a workflow access to its episode: its identity, the scope of its statistics, HTTP clients for other hosts.

Knows: the current episode.  Knows not: how it is played.
Used as a module: `workflow_context.get()`, `await workflow_context.get_httpx_client()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ludus.agents.adapter import EpisodeContext, current_episode
from ludus.errors import UserError


@dataclass(frozen=True, slots=True)
class WorkflowContext:
    """Identifies the current episode."""

    is_eval: bool = False
    task_id: str | None = None
    """Identifies the row. None: there is no current episode."""


def get() -> WorkflowContext:
    """The current episode; outside of one, a context without a row that is no evaluation."""
    context = current_episode()
    return WorkflowContext() if context is None else WorkflowContext(context.info.is_eval, context.info.task_id)


def stat_scope() -> str:
    """`rollout`, or `eval-rollout` in an evaluation."""
    return "eval-rollout" if get().is_eval else "rollout"


async def get_httpx_client() -> Any:
    """An `httpx.AsyncClient` for tools and rewards, shared by all episodes, and closed when the agents end."""
    return await _playing("get_httpx_client").clients.httpx_client()


async def get_aiohttp_session() -> Any:
    """An `aiohttp.ClientSession`, otherwise as `get_httpx_client`. Raises UserError if aiohttp is not installed."""
    return await _playing("get_aiohttp_session").clients.aiohttp_session()


def _playing(name: str) -> EpisodeContext:
    context = current_episode()
    if context is None:
        raise UserError(f"workflow_context.{name}() works while an episode is played, in its own tasks; none is")
    return context
