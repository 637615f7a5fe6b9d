"""As in `verl.workers.rollout.llm_server`, where the server manager is called a client."""

from ludus.compat.verl.server import AsyncLLMServerManager
from ludus.compat.verl.server import AsyncLLMServerManager as LLMServerClient

__all__ = ["AsyncLLMServerManager", "LLMServerClient"]
