"""The names of `verl` for agents and tools: `from ludus.verl…` in the place of `from verl…`."""

from ludus.agents.loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    AsyncLLMServerManager,
    BaseInteraction,
    SingleTurnAgentLoop,
    TokenOutput,
    ToolAgentLoop,
    register,
)
from ludus.agents.tools import BaseTool, OpenAIFunctionToolSchema, ToolResponse, function_tool

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
