"""As in `verl.experimental.agent_loop`."""

from ludus.agents.loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    AsyncLLMServerManager,
    SingleTurnAgentLoop,
    TokenOutput,
    ToolAgentLoop,
    register,
)

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
