"""The names of `areal.infra.workflow_context`."""

from ludus.compat.areal.context import WorkflowContext, get, get_aiohttp_session, get_httpx_client, stat_scope

__all__ = [
    "WorkflowContext",
    "get",
    "get_aiohttp_session",
    "get_httpx_client",
    "stat_scope",
]
