"""The names of `recipe.langgraph_agent.chat_model`."""

from ludus.agents.langchain import ChatModel, MaxTokenExceededError, convert_to_agent_output

__all__ = ["ChatModel", "MaxTokenExceededError", "convert_to_agent_output"]
