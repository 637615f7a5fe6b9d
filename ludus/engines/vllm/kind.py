"""vLLM as a kind of engine: how its servers are started, spoken to, and given weights."""

from __future__ import annotations

from ludus.engines.kind import ServerKind
from ludus.engines.vllm.command import vllm_command
from ludus.engines.vllm.delivery import ROUTES, vllm_delivery
from ludus.engines.vllm.engine import VllmEngine

KIND = ServerKind(VllmEngine.connect, vllm_command, vllm_delivery, ROUTES)
