"""Settings of vLLM servers."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from ludus.engines.settings import BatchSettings, ServerSettings


class VllmSettings(BatchSettings, ServerSettings):
    """Keys of memory and batch are passed to vLLM if they are set."""

    implementation: ClassVar[str] = "ludus.engines.vllm.kind:KIND"
    acts_with_urls: ClassVar[frozenset[str]] = ServerSettings.acts_with_urls | {
        *("keep_kv_on_publish", "placement", "stream_interval"),
    }
    kind: Literal["vllm"] = "vllm"
    python: str | None = None
    """Interpreter of the environment that has vLLM. None: the one that runs Ludus."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """Devices that share one replica's weights."""
    data_parallel_size: int = Field(default=1, ge=1)
    """Copies of the weights inside one replica."""
    stream_interval: int = Field(default=1, ge=1)
    """Tokens of an answer that come in one message, after its first token. Each message takes the run's process as
    long, whatever is in it; but of an answer that is cut off, tokens that wait for the next message are lost."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Further options of the server's command line, such as {max_model_len: 4096}."""

    @property
    def cards_each(self) -> int:
        return self.tensor_parallel_size * self.data_parallel_size
