"""Agents, where the guide of `realhf` says they are."""

from ludus.compat.realhf.agent import ALL_AGENTS, Agent, make_agent, register_agent

__all__ = ["ALL_AGENTS", "Agent", "make_agent", "register_agent"]
