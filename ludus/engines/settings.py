"""Which engine samples, how many of it there are, and how new weights reach it.

Knows: plain values.  Knows not: how any engine is started or reached.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from ludus.engines.local.settings import InferenceSettings
from ludus.errors import ConfigError

EngineKind = Literal["local", "server", "vllm", "sglang"]
WeightRoute = Literal["auto", "lora", "shared_memory", "disk", "stream", "nccl", "ipc"]


class EngineSettings(InferenceSettings):
    """The engine of a run. The keys of Ludus's own engine act where it samples, kinds local and server, and for vllm
    where vLLM has the same: kv_bytes, max_batch_tokens and max_running when it is started, keep_kv_on_publish."""

    kind: EngineKind = "local"
    """local: in this process, on the tensors that are trained. server: Ludus's engine in processes of its own.
    vllm, sglang: those servers."""
    urls: tuple[str, ...] = ()
    """Engines that run already, one URL each. None: Ludus starts `replicas` of them, and stops them with the run."""
    api_key: str | None = None
    """The key that the engines at `urls` want."""
    python: str | None = None
    """Interpreter of the environment that has vLLM or SGLang. None: the one that runs Ludus."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """vllm, sglang: devices that share one replica's weights."""
    data_parallel_size: int = Field(default=1, ge=1)
    """vllm, sglang: copies of the weights inside one replica."""
    args: dict[str, Any] = Field(default_factory=dict)
    """vllm, sglang: more options of the server's own command line, such as {max_model_len: 4096}."""
    weights: WeightRoute = "auto"
    """How new weights travel to engines outside of this process. auto: adapters alone if adapters are trained, else
    what is fastest where the engine runs."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        is_local, is_started = self.kind == "local", not self.urls
        starts_other = self.kind in ("vllm", "sglang") and is_started
        # What of our own engine's keys vLLM has a word for.
        shared = ("kv_bytes", "max_batch_tokens", "max_running") if starts_other and self.kind == "vllm" else ()
        acts = {
            "urls": not is_local,
            "api_key": bool(self.urls),
            "weights": not is_local,
            **dict.fromkeys(("python", "tensor_parallel_size", "data_parallel_size", "args"), starts_other),
            **dict.fromkeys(InferenceSettings.model_fields, is_local or (self.kind == "server" and is_started)),
            **dict.fromkeys(shared, True),
            "keep_kv_on_publish": is_local or self.kind == "vllm" or (self.kind == "server" and is_started),
            "replicas": is_started,
        }
        for name, does_act in acts.items():
            if self.is_set(name) and not does_act:
                where = f"kind is {self.kind!r}" + ("" if is_started else " and urls are given")
                raise ConfigError(f"{name}={getattr(self, name)!r} cannot act: {where}; remove it")
        return self
