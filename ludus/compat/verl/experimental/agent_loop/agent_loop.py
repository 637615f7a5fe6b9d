"""As in `verl.experimental.agent_loop.agent_loop`."""

from ludus.compat.verl.base import AgentLoopBase
from ludus.compat.verl.config_view import DictConfigWrap
from ludus.compat.verl.output import AgentLoopMetrics, AgentLoopOutput
from ludus.compat.verl.registry import register
from ludus.compat.verl.server import AsyncLLMServerManager, TokenOutput

__all__ = [
    "AgentLoopBase",
    "AgentLoopMetrics",
    "AgentLoopOutput",
    "AsyncLLMServerManager",
    "DictConfigWrap",
    "TokenOutput",
    "register",
]
