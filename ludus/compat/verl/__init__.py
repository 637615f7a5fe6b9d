"""The names of `verl` for agents and tools: `from ludus.compat.verl…` in the place of `from verl…`."""

from typing import TYPE_CHECKING

from ludus.compat.lazy import lazily

if TYPE_CHECKING:
    from ludus.agents.tools import BaseTool, OpenAIFunctionToolSchema, ToolResponse, function_tool
    from ludus.compat.verl.base import AgentLoopBase
    from ludus.compat.verl.interaction import BaseInteraction
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
    "BaseInteraction",
    "BaseTool",
    "OpenAIFunctionToolSchema",
    "SingleTurnAgentLoop",
    "TokenOutput",
    "ToolAgentLoop",
    "ToolResponse",
    "function_tool",
    "register",
]

_NAMES = {
    "AgentLoopBase": "ludus.compat.verl.base",
    "BaseInteraction": "ludus.compat.verl.interaction",
    "AgentLoopMetrics": "ludus.compat.verl.output",
    "AgentLoopOutput": "ludus.compat.verl.output",
    "register": "ludus.compat.verl.registry",
    "AsyncLLMServerManager": "ludus.compat.verl.server",
    "TokenOutput": "ludus.compat.verl.server",
    "SingleTurnAgentLoop": "ludus.compat.verl.single",
    "ToolAgentLoop": "ludus.compat.verl.tool_loop",
    "BaseTool": "ludus.agents.tools",
    "OpenAIFunctionToolSchema": "ludus.agents.tools",
    "ToolResponse": "ludus.agents.tools",
    "function_tool": "ludus.agents.tools",
}
__getattr__ = lazily(__name__, _NAMES)
