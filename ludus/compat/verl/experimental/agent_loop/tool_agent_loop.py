"""As in `verl.experimental.agent_loop.tool_agent_loop`."""

from ludus.compat.verl.tool_loop import AgentData, AgentState, ToolAgentLoop

__all__ = ["AgentData", "AgentState", "ToolAgentLoop"]
