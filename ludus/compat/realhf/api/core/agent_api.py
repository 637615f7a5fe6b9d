"""Agents, where `realhf.api.core.agent_api` has them."""

from ludus.compat.realhf.agent import ALL_AGENTS, Agent, make_agent, register_agent

ALL_AGNETS = ALL_AGENTS

__all__ = ["ALL_AGENTS", "ALL_AGNETS", "Agent", "make_agent", "register_agent"]
