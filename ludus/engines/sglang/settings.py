"""Settings of SGLang servers. Ludus starts none."""

from __future__ import annotations

from typing import ClassVar, Literal

from ludus.engines.settings import ServerSettings


class SglangSettings(ServerSettings):
    implementation: ClassVar[str] = "ludus.engines.sglang.engine:KIND"
    kind: Literal["sglang"] = "sglang"
