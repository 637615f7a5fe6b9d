"""As in `verl.experimental.agent_loop.single_turn_agent_loop`."""

from ludus.compat.verl.single import SingleTurnAgentLoop

__all__ = ["SingleTurnAgentLoop"]
