"""Settings of Ludus's own engine as a server process."""

from __future__ import annotations

from typing import ClassVar, Literal

from ludus.engines.local.settings import InferenceSettings
from ludus.engines.settings import ServerSettings


class LudusServerSettings(InferenceSettings, ServerSettings):
    implementation: ClassVar[str] = "ludus.engines.serving.engine:KIND"
    kind: Literal["server"] = "server"
