"""The names of `recipe.langgraph_agent.react_agent_loop`."""

from ludus.agents.langchain import ReactAgentLoop, call_model, should_continue

__all__ = ["ReactAgentLoop", "call_model", "should_continue"]
