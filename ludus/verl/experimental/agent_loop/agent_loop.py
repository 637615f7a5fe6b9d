"""As in `verl.experimental.agent_loop.agent_loop`."""

from ludus.agents.loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    AsyncLLMServerManager,
    DictConfigWrap,
    TokenOutput,
    register,
)

__all__ = [
    "AgentLoopBase",
    "AgentLoopMetrics",
    "AgentLoopOutput",
    "AsyncLLMServerManager",
    "DictConfigWrap",
    "TokenOutput",
    "register",
]
