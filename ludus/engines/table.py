"""The kinds of engines there are, each one folder and one line of this table.

To add one: a folder with `settings.py` (its keys, and where the rest is) and what its `implementation` names.
"""

from __future__ import annotations

from collections.abc import Mapping

from ludus.engines.local.settings import LocalSettings
from ludus.engines.recorded.settings import RecordedSettings
from ludus.engines.script.settings import ScriptSettings
from ludus.engines.serving.settings import LudusServerSettings
from ludus.engines.settings import EngineSettings
from ludus.engines.sglang.settings import SglangSettings
from ludus.engines.vllm.settings import VllmSettings

ENGINES: Mapping[str, type[EngineSettings]] = {
    "local": LocalSettings,
    "recorded": RecordedSettings,
    "scripted": ScriptSettings,
    "server": LudusServerSettings,
    "sglang": SglangSettings,
    "vllm": VllmSettings,
}
