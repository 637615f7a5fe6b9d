"""What starts a vLLM that Ludus trains with.

Knows: vLLM's command line and environment (0.32), the folder of our plugin.  Knows not: when and where it is started.
Invariant: what exact records, new weights and keys need is set here, and cannot be taken back by `engine.args`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ludus_vllm
from ludus.engines.options import option_words, own_options
from ludus.engines.process import ReplicaAddress, ServerCommand
from ludus.engines.vllm.delivery import transfer_backend
from ludus.engines.vllm.settings import VllmSettings
from ludus.errors import ConfigError
from ludus.models.resolve import adapter_base, resolve_model
from ludus.models.settings import ModelSettings
from ludus.processes.cards import find_cards
from ludus.processes.files import user_cache
from ludus_vllm.guard import KEY_VARIABLE

# By its module: the command `vllm` asks for the version of a package that the build for processors does not have.
MODULE = "vllm.entrypoints.launchers.api_server.entry"
# vLLM keeps room for adapters of one of these ranks.
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_AMD = Path("/dev/kfd")
# vLLM does not start unless this share of the card is free. On a card that it shares, how much it takes for keys and
# values is told in bytes, and this share has no other meaning.
_FREE_AT_START = 0.01
_SIZES: Mapping[str, str] = {
    "max_running": "max_num_seqs",
    "max_batch_tokens": "max_num_batched_tokens",
    "tensor_parallel_size": "tensor_parallel_size",
    "data_parallel_size": "data_parallel_size",
}
"""Keys of the engine that are passed on where they are given, and what vLLM calls them."""
_OURS: Mapping[str, str] = {
    **{theirs: f"engine.{ours}" for ours, theirs in _SIZES.items()},
    "kv_cache_memory_bytes": "engine.kv_bytes",
    "dtype": "model.dtype",
    "model": "model.path",
    "max_lora_rank": "model.lora.rank",
    "lora_target_modules": "model.lora.target_modules",
    "weight_transfer_config": "engine.weights",
    "enable_sleep_mode": "engine.placement",
    **dict.fromkeys(("host", "port", "api_key", "middleware", "seed", "uds"), "the run, which finds the server by it"),
    **dict.fromkeys(("enable_lora", "max_loras", "max_cpu_loras"), "model.lora"),
    **dict.fromkeys(
        ("enable_scale_out", "logprobs_mode", "structured_outputs_config", "enable_prompt_tokens_details"),
        "Ludus: without it nothing can be recorded exactly",
    ),
}
"""Options that are ours to set, and what sets them."""


def vllm_command(engine: VllmSettings, model: ModelSettings, address: ReplicaAddress) -> ServerCommand:
    """The command of one replica. Raises ConfigError for options that are not for `engine.args` to set."""
    folder = resolve_model(model.path)
    base = adapter_base(folder)
    options: dict[str, Any] = {
        "model": str(folder if base is None else resolve_model(base)),
        "host": address.host,
        "port": address.port,
        "middleware": "ludus_vllm.guard.RequireKey",
        "seed": address.seed % 2**32 + address.index,
        "dtype": model.dtype,
        "uvicorn_log_level": "warning",
        "enable_scale_out": True,
        "logprobs_mode": "processed_logprobs",
        "structured_outputs_config": {"backend": "guidance"},
        "enable_prompt_tokens_details": True,
        "weight_transfer_config": {"backend": transfer_backend(engine)},
        **_sizes(engine, model),
        **_adapter_options(model, folder if base is not None else None),
        # the same 4 bits beneath the same adapter, or the trainer would hold its tokens for another policy's
        **({"quantization": "bitsandbytes"} if model.quantization == "nf4" else {}),
        **own_options(engine.args, _OURS),
    }
    argv = (engine.python or sys.executable, "-m", MODULE, *option_words(options, has_negations=True))
    return ServerCommand(argv, _environment(address))


def _sizes(engine: VllmSettings, model: ModelSettings) -> dict[str, Any]:
    is_shared = engine.placement == "shared"
    # On a shared card all of its memory is counted before the start, and nothing is left to vLLM.
    given = {name: value for name, value in engine.model_dump().items() if engine.is_set(name) or is_shared}
    sizes: dict[str, Any] = {theirs: given[ours] for ours, theirs in _SIZES.items() if ours in given}
    # On a card of its own vLLM takes what is free; of a processor's memory it would take nearly all.
    has_card = model.device != "cpu" and (bool(find_cards()) or _AMD.exists())
    if "kv_bytes" in given or not has_card:
        sizes["kv_cache_memory_bytes"] = engine.kv_bytes
    if is_shared and has_card:  # on a processor vLLM sleeps without giving memory back, and refuses the option
        sizes |= {"enable_sleep_mode": True, "gpu_memory_utilization": _FREE_AT_START}
    if not has_card:
        # On a processor a prompt that is computed in chunks fails if its call has a seed: vLLM takes the draw of a
        # chunk back, which torch's generators for processors cannot.
        sizes["enable_chunked_prefill"] = False
    if model.context_length is not None:
        sizes["max_model_len"] = model.context_length
    return sizes


def _adapter_options(model: ModelSettings, adapter: Path | None) -> dict[str, Any]:
    """adapter: the folder of the one that is trained further. None: a fresh one, or none."""
    if adapter is not None:
        config = json.loads((adapter / "adapter_config.json").read_text())
        rank, modules = int(config["r"]), config["target_modules"]
    elif model.lora is not None:
        rank, modules = model.lora.rank, model.lora.target_modules
    else:
        return {}
    room = next((each for each in _LORA_RANKS if each >= rank), None)
    if room is None:
        raise ConfigError(f"adapters of rank {rank} are not for vLLM, which takes up to {_LORA_RANKS[-1]}")
    if modules is None or (model.lora is not None and model.lora.target_parameters):
        raise ConfigError(
            "vLLM is told which linear layers get adapters before it loads any, and gives none to experts: name the "
            "layers in model.lora.target_modules, and leave model.lora.target_parameters out"
        )
    if isinstance(modules, str):
        raise ConfigError(
            f"the adapter's target_modules={modules!r} is a pattern; vLLM wants names: write the list of them into its "
            "adapter_config.json"
        )
    # vLLM would prepare every layer, the vocabulary's head among them, and then fails where a prompt is scored beside
    # calls that run.
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": room, "lora_target_modules": sorted(modules)}


def _environment(address: ReplicaAddress) -> dict[str, str]:
    paths = (str(plugin_folder()), os.environ.get("PYTHONPATH"))
    return {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "VLLM_SERVER_DEV_MODE": "1",  # pauses and weights; the key stands before them
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        KEY_VARIABLE: address.key,
    }


def plugin_folder() -> Path:
    """A folder for PYTHONPATH, in the user's cache, in which vLLM finds our plugin and nothing else.

    The environment of vLLM need not have Ludus.
    """
    source = Path(ludus_vllm.__file__).parent
    files = {f"{source.name}/{file.name}": file.read_text(encoding="utf-8") for file in sorted(source.glob("*.py"))}
    files["ludus_vllm-0.dist-info/METADATA"] = "Metadata-Version: 2.1\nName: ludus-vllm\nVersion: 0\n"
    files["ludus_vllm-0.dist-info/entry_points.txt"] = "[vllm.general_plugins]\nludus = ludus_vllm:register\n"
    digest = hashlib.blake2b(json.dumps(files).encode(), digest_size=8).hexdigest()
    folder = user_cache() / "vllm-plugin" / digest
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=folder.parent))
        for name, text in files.items():
            (new / name).parent.mkdir(exist_ok=True)
            (new / name).write_text(text, encoding="utf-8")
        try:
            new.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(new)
    return folder
