"""The names of verl's recipe `langgraph_agent`: graphs of LangGraph as agent loops."""

from ludus.agents.langchain import ChatModel, MaxTokenExceededError, ReactAgentLoop, convert_to_agent_output

__all__ = ["ChatModel", "MaxTokenExceededError", "ReactAgentLoop", "convert_to_agent_output"]
