"""Tasks for agents that have the tools of an MCP server."""

from ludus.agents.scenarios.generate import generate_scenarios
from ludus.agents.scenarios.scenario import (
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
