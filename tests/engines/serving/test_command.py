"""What starts a server of our engine."""

from __future__ import annotations

import sys

from ludus.engines.process import ReplicaAddress
from ludus.engines.serving.command import KEY_VARIABLE, engine_command
from ludus.engines.serving.settings import LudusServerSettings
from ludus.models.settings import LoraSettings, ModelSettings

ADDRESS = ReplicaAddress("10.0.0.7", 8123, "secret", seed=5, index=2)


def test_says_what_is_not_the_default() -> None:
    """Model, engine and address are on the command line, the key in the environment, and nothing that is understood."""
    engine = LudusServerSettings(replicas=3, kv_bytes=2**20, kernels="eager")
    model = ModelSettings(path="org/name", dtype="float32", lora=LoraSettings(rank=4))
    command = engine_command(engine, model, ADDRESS)
    lora = '{"rank": 4, "alpha": 32.0, "target_modules": null, "target_parameters": []}'
    assert command.argv == (
        *(sys.executable, "-P", "-m", "ludus", "engine", "serve", "org/name", 'model.dtype="float32"'),
        f"model.lora={lora}",
        *('engine.kernels="eager"', "engine.kv_bytes=1048576", "seed=7"),
        *("--host", "10.0.0.7", "--port", "8123"),
    )
    assert command.env == {KEY_VARIABLE: "secret"} and "secret" not in repr(command)
