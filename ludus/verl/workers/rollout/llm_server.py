"""As in `verl.workers.rollout.llm_server`, where the server manager is called a client."""

from ludus.agents.loop import AsyncLLMServerManager
from ludus.agents.loop import AsyncLLMServerManager as LLMServerClient

__all__ = ["AsyncLLMServerManager", "LLMServerClient"]
