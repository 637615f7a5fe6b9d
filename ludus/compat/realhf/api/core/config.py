"""Agents and environments by name, where `realhf.api.core.config` has them."""

from ludus.compat.realhf.abstraction import AgentAbstraction, EnvServiceAbstraction

__all__ = ["AgentAbstraction", "EnvServiceAbstraction"]
