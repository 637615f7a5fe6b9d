"""As in `verl.tools.function_tool`."""

from ludus.agents.tools import FunctionTool, function_tool

__all__ = ["FunctionTool", "function_tool"]
