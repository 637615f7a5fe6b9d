"""As in `verl.experimental.agent_loop`."""

from ludus.compat.verl.base import AgentLoopBase
from ludus.compat.verl.output import AgentLoopMetrics, AgentLoopOutput
from ludus.compat.verl.registry import register
from ludus.compat.verl.server import AsyncLLMServerManager, TokenOutput
from ludus.compat.verl.single import SingleTurnAgentLoop
from ludus.compat.verl.tool_loop import ToolAgentLoop

__all__ = [
    "AgentLoopBase",
    "AgentLoopMetrics",
    "AgentLoopOutput",
    "AsyncLLMServerManager",
    "SingleTurnAgentLoop",
    "TokenOutput",
    "ToolAgentLoop",
    "register",
]
