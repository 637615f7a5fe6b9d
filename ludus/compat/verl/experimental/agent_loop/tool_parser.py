"""As in `verl.experimental.agent_loop.tool_parser`."""

from ludus.compat.verl.parser import FunctionCall, ToolParser

__all__ = ["FunctionCall", "ToolParser"]
