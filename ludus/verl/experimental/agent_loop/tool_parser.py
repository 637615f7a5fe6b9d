"""As in `verl.experimental.agent_loop.tool_parser`."""

from ludus.agents.loop import FunctionCall, ToolParser

__all__ = ["FunctionCall", "ToolParser"]
