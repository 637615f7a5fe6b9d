"""Settings of SGLang servers."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from ludus.engines.settings import ServerSettings


class SglangSettings(ServerSettings):
    implementation: ClassVar[str] = "ludus.engines.sglang.engine:KIND"
    acts_with_urls: ClassVar[frozenset[str]] = ServerSettings.acts_with_urls | {"deterministic"}
    kind: Literal["sglang"] = "sglang"
    python: str | None = None
    """Interpreter of the environment that has SGLang. None: the one that runs Ludus."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """Devices that share one replica's weights."""
    deterministic: bool = False
    """A call is drawn by its seed, whichever calls run beside it, at about two thirds of the speed; servers that run
    already are refused unless they do so. False: SGLang draws with its own random numbers."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Further options of the server's command line, such as {mem_fraction_static: 0.8}."""

    @property
    def cards_each(self) -> int:
        return self.tensor_parallel_size
