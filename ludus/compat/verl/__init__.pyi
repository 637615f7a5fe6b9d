# Written from names.toml: python -m tests.compat.test_stubs
from typing import Any

from ludus.agents.tools.base import BaseTool as BaseTool
from ludus.agents.tools.base import ToolResponse as ToolResponse
from ludus.agents.tools.schema import OpenAIFunctionToolSchema as OpenAIFunctionToolSchema
from ludus.compat.verl.base import AgentLoopBase as AgentLoopBase
from ludus.compat.verl.function_tools import function_tool as function_tool
from ludus.compat.verl.interaction import BaseInteraction as BaseInteraction
from ludus.compat.verl.output import AgentLoopMetrics as AgentLoopMetrics
from ludus.compat.verl.output import AgentLoopOutput as AgentLoopOutput
from ludus.compat.verl.registry import register as register
from ludus.compat.verl.server import AsyncLLMServerManager as AsyncLLMServerManager
from ludus.compat.verl.server import TokenOutput as TokenOutput
from ludus.compat.verl.single import SingleTurnAgentLoop as SingleTurnAgentLoop
from ludus.compat.verl.tool_loop import ToolAgentLoop as ToolAgentLoop

def __getattr__(name: str) -> Any: ...
