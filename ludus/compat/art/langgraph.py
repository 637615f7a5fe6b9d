"""The names of `art.langgraph`: rollouts whose agent is a graph."""

from ludus.compat.art.langchain import init_chat_model, wrap_rollout

__all__ = ["init_chat_model", "wrap_rollout"]
