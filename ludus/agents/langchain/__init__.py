"""Graphs of LangGraph as agents: a chat model whose answers are recorded."""

try:
    import langchain_core as _langchain_core  # noqa: F401
    import langgraph as _langgraph  # noqa: F401
except ModuleNotFoundError as error:
    hint = f"agents of LangGraph need {error.name!r}, which is not installed: pip install 'ludus[langgraph]'"
    raise ModuleNotFoundError(hint, name=error.name) from None

from ludus.agents.langchain.model import ChatModel, MaxTokenExceededError

__all__ = ["ChatModel", "MaxTokenExceededError"]
