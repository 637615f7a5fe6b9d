"""What starts a server of the local engine.

Knows: the options of `ludus engine serve`.  Knows not: when and where it is started.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from ludus.engines.local.settings import InferenceSettings
from ludus.engines.process import ReplicaAddress, ServerCommand
from ludus.engines.serving.settings import LudusServerSettings
from ludus.models.settings import ModelSettings
from ludus.processes.program import PROGRAM
from ludus.settings import Settings

KEY_VARIABLE = "LUDUS_ENGINE_KEY"


def engine_command(engine: LudusServerSettings, model: ModelSettings, address: ReplicaAddress) -> ServerCommand:
    """The command of one replica, with every setting that is not the default."""
    inside = frozenset(InferenceSettings.model_fields)
    overrides = [
        *_overrides("model", model, frozenset(ModelSettings.model_fields) - {"path", "served_names"}),
        *_overrides("engine", engine, inside),
        f"seed={address.seed + address.index}",
    ]
    argv = (*PROGRAM, "engine", "serve", model.path, *overrides)
    return ServerCommand((*argv, "--host", address.host, "--port", str(address.port)), {KEY_VARIABLE: address.key})


def _overrides(prefix: str, settings: Settings, names: frozenset[str]) -> Iterator[str]:
    values = settings.model_dump(mode="json")
    for name in sorted(names):
        if settings.is_set(name):
            yield f"{prefix}.{name}={json.dumps(values[name])}"
