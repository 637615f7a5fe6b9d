"""The names of `art.mcp`: tasks for agents that have the tools of an MCP server."""

from ludus.compat.art.generate import generate_scenarios
from ludus.compat.art.scenario import (
    GeneratedScenario,
    GeneratedScenarioCollection,
    MCPResource,
    MCPTool,
    complete_task_tool,
)

__all__ = [
    "GeneratedScenario",
    "GeneratedScenarioCollection",
    "MCPResource",
    "MCPTool",
    "complete_task_tool",
    "generate_scenarios",
]
