"""Graphs of LangGraph as agents: a chat model whose answers are recorded, and an agent loop that runs a graph."""

try:
    import langchain_core as _langchain_core  # noqa: F401
    import langgraph as _langgraph  # noqa: F401
except ModuleNotFoundError as error:
    hint = f"agents of LangGraph need {error.name!r}, which is not installed: pip install 'ludus[langgraph]'"
    raise ModuleNotFoundError(hint, name=error.name) from None

from ludus.agents.langchain.model import ChatModel, MaxTokenExceededError
from ludus.compat.verl.graph_loop import (
    ReactAgentLoop,
    call_model,
    convert_to_agent_output,
    should_continue,
)
from ludus.compat.verl.graph_tools import LimitedTools

__all__ = [
    "ChatModel",
    "LimitedTools",
    "MaxTokenExceededError",
    "ReactAgentLoop",
    "call_model",
    "convert_to_agent_output",
    "should_continue",
]
