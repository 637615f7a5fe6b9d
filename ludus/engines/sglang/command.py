"""What starts an SGLang that Ludus trains with.

Knows: SGLang's command line (0.5.23).  Knows not: when and where it is started.
Invariant: what exact records and keys need is set here, and cannot be taken back by `engine.args`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ludus.engines.options import option_words, own_options
from ludus.engines.process import ReplicaAddress, ServerCommand
from ludus.engines.sglang.settings import SglangSettings
from ludus.errors import ConfigError
from ludus.models.resolve import adapter_base, resolve_model
from ludus.models.settings import ModelSettings

KEY_VARIABLE = "LUDUS_SGLANG_KEY"
MODULE = "sglang.launch_server"
# Everybody on a machine sees the arguments of a command, and SGLang takes its key from them alone. Not imported by
# name: its processes begin with what this one is, and must not run it again.
_START = f"""
import os, runpy, sys
sys.argv = [{MODULE!r}, *sys.argv[1:], "--api-key", os.environ.pop({KEY_VARIABLE!r})]
runpy.run_module({MODULE!r}, run_name="__main__")
"""
_OURS: Mapping[str, str] = {
    **dict.fromkeys(("tp", "tp_size", "tensor_parallel_size"), "engine.tensor_parallel_size"),
    **dict.fromkeys(("model", "model_path"), "model.path"),
    "dtype": "model.dtype",
    "context_length": "model.context_length",
    "enable_deterministic_inference": "engine.deterministic",
    **dict.fromkeys(("host", "port", "api_key", "random_seed"), "the run, which finds the server by it"),
    **dict.fromkeys(
        ("grammar_backend", "incremental_streaming_output", "skip_tokenizer_init"),
        "Ludus: without it nothing can be recorded exactly",
    ),
}
"""Options that are ours to set, and what sets them."""


def sglang_command(engine: SglangSettings, model: ModelSettings, address: ReplicaAddress) -> ServerCommand:
    """The command of one replica. Raises ConfigError for options that are not for `engine.args` to set, and for
    adapters."""
    folder = resolve_model(model.path)
    if model.lora is not None or adapter_base(folder) is not None:
        raise ConfigError(
            "adapters are not for engine.kind=sglang, where calls in flight would keep one that was replaced: leave "
            "model.lora unset, or choose server or vllm"
        )
    options: dict[str, Any] = {
        "model_path": str(folder),
        "host": address.host,
        "port": address.port,
        "random_seed": address.seed % 2**31 + address.index,
        "dtype": model.dtype,
        "tensor_parallel_size": engine.tensor_parallel_size,
        "grammar_backend": "llguidance",
        "incremental_streaming_output": True,
        "enable_deterministic_inference": engine.deterministic,
        **({} if model.context_length is None else {"context_length": model.context_length}),
        **own_options(engine.args, _OURS),
    }
    words = option_words(options, has_negations=False)
    return ServerCommand((engine.python or sys.executable, "-c", _START, *words), {KEY_VARIABLE: address.key})
