"""Tools that a model may call: written as verl's users write them, opened and closed once for a trajectory."""

from ludus.agents.tools.answer import ToolError, ToolLimits
from ludus.agents.tools.base import BaseTool, ToolResponse
from ludus.agents.tools.episode_tools import EpisodeTools, ToolResult
from ludus.agents.tools.function import FunctionTool, function_tool
from ludus.agents.tools.mcp import McpAddress, McpServer, McpServers, McpTool
from ludus.agents.tools.python import PythonTool
from ludus.agents.tools.schema import (
    OpenAIFunctionParametersSchema,
    OpenAIFunctionPropertySchema,
    OpenAIFunctionSchema,
    OpenAIFunctionToolSchema,
)
from ludus.agents.tools.source import ToolPlan, ToolSource
from ludus.agents.tools.tool_set import ToolSet

__all__ = [
    "BaseTool",
    "EpisodeTools",
    "FunctionTool",
    "McpAddress",
    "McpServer",
    "McpServers",
    "McpTool",
    "OpenAIFunctionParametersSchema",
    "OpenAIFunctionPropertySchema",
    "OpenAIFunctionSchema",
    "OpenAIFunctionToolSchema",
    "PythonTool",
    "ToolError",
    "ToolLimits",
    "ToolPlan",
    "ToolResponse",
    "ToolResult",
    "ToolSet",
    "ToolSource",
    "function_tool",
]
