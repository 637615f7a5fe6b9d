"""What starts a vLLM: the options that follow from a run's settings, and those that `engine.args` may not set."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ludus.engines.process import ReplicaAddress
from ludus.engines.vllm import command as module
from ludus.engines.vllm.command import plugin_folder, vllm_command
from ludus.engines.vllm.settings import VllmSettings
from ludus.errors import ConfigError
from ludus.models.settings import ModelSettings
from ludus_vllm.guard import KEY_VARIABLE
from tests.engines.vllm.vllm_server import RECORD

ADDRESS = ReplicaAddress("127.0.0.1", 4711, "secret", seed=3, index=2)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written into the user's own cache, and no machine of the tests has a card."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "find_cards", tuple)


def options(engine: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, list[str]]:
    """The arguments of the command after each option."""
    argv = vllm_command(VllmSettings(**engine), ModelSettings(**model), ADDRESS).argv
    found: dict[str, list[str]] = {}
    for word in argv[3:]:
        if word.startswith("--"):
            found[word] = []
        else:
            found[[*found][-1]].append(word)
    return found


def test_a_run_has_what_exact_records_need(folder: str) -> None:
    """Token ids, logprobs of what was sampled from, weights by our plugin, a key before every path."""
    command = vllm_command(VllmSettings(python="/opt/vllm/bin/python"), ModelSettings(path=folder), ADDRESS)
    assert command.argv[:2] == ("/opt/vllm/bin/python", "-m")
    found = options({}, {"path": folder})
    assert found["--model"] == [folder] and found["--port"] == ["4711"] and found["--host"] == ["127.0.0.1"]
    assert found["--enable-scale-out"] == [] and found["--logprobs-mode"] == ["processed_logprobs"]
    assert json.loads(found["--weight-transfer-config"][0]) == {"backend": "ludus_shm"}
    assert found["--middleware"] == ["ludus_vllm.guard.RequireKey"] and found["--seed"] == ["5"]
    assert "--enable-lora" not in found
    assert command.env[KEY_VARIABLE] == "secret" and "secret" not in " ".join(command.argv)
    assert command.env["VLLM_SERVER_DEV_MODE"] == "1"


def test_settings_have_their_options(folder: str) -> None:
    """What Ludus has a key for becomes vLLM's option; on a processor memory is always bounded."""
    engine = {"max_running": 48, "max_batch_tokens": 4096, "tensor_parallel_size": 2, "data_parallel_size": 3}
    found = options(engine, {"path": folder, "dtype": "float32", "context_length": 512})
    assert found["--max-num-seqs"] == ["48"] and found["--max-num-batched-tokens"] == ["4096"]
    assert found["--tensor-parallel-size"] == ["2"] and found["--data-parallel-size"] == ["3"]
    assert found["--dtype"] == ["float32"] and found["--max-model-len"] == ["512"]
    assert found["--kv-cache-memory-bytes"] == [str(512 * 2**20)] and found["--no-enable-chunked-prefill"] == []


def test_on_a_shared_card_vllm_can_sleep_and_takes_what_it_is_told(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bytes: a share of the card would count what the trainer holds. On a processor there is nothing to give back,
    and vLLM refuses the option."""
    shared = {"placement": "shared", "weights": "ipc"}
    assert {"--enable-sleep-mode", "--gpu-memory-utilization"}.isdisjoint(options(shared, {"path": folder}))
    monkeypatch.setattr(module, "find_cards", lambda: (object(),))
    found = options(shared, {"path": folder})
    assert found["--enable-sleep-mode"] == [] and found["--gpu-memory-utilization"] == ["0.01"]
    assert found["--kv-cache-memory-bytes"] == [str(512 * 2**20)]
    assert found["--max-num-seqs"] == ["256"] and found["--max-num-batched-tokens"] == ["2048"]  # as they are planned
    assert json.loads(found["--weight-transfer-config"][0]) == {"backend": "ludus_ipc"}
    split = options({}, {"path": folder})
    assert {"--enable-sleep-mode", "--kv-cache-memory-bytes", "--gpu-memory-utilization"}.isdisjoint(split)
    named = {name.removeprefix("--").removeprefix("no-").replace("-", "_") for name in found}
    assert named - set(RECORD["options"]) == set()


def test_args_are_options_of_any_kind(folder: str) -> None:
    """Values, switches, lists and mappings, by the names of either spelling."""
    args = {"max_model_len": 4096, "--enforce-eager": True, "async_scheduling": False, "a-list": [1, 2], "b": {"c": 1}}
    found = options({"args": args}, {"path": folder})
    assert found["--max-model-len"] == ["4096"] and found["--enforce-eager"] == []
    assert found["--no-async-scheduling"] == [] and found["--a-list"] == ["1", "2"] and found["--b"] == ['{"c": 1}']


@pytest.mark.parametrize(
    ("args", "match"),
    [
        ({"max_num_seqs": 4}, r"engine.args.max_num_seqs is set by engine.max_running"),
        ({"--logprobs-mode": "raw_logits"}, "nothing can be recorded exactly"),
        ({"no-enable-scale-out": True}, "nothing can be recorded exactly"),
        ({"weight_transfer_config": {}}, r"set by engine.weights"),
        ({"enable_sleep_mode": True}, r"set by engine.placement"),
        ({"enforce_eager": None}, "has no value"),
    ],
)
def test_options_of_ours_are_refused(folder: str, args: Mapping[str, Any], match: str) -> None:
    """What the run depends on cannot be taken back; it says which key sets it."""
    with pytest.raises(ConfigError, match=match):
        options({"args": args}, {"path": folder})


def test_a_trained_adapter_has_room(folder: str, tmp_path: Path) -> None:
    """Fresh adapters by model.lora, or those of a folder, whose base model is served."""
    fresh = options({}, {"path": folder, "lora": {"rank": 12, "target_modules": ["v_proj", "q_proj"]}})
    assert fresh["--max-lora-rank"] == ["16"] and fresh["--lora-target-modules"] == ["q_proj", "v_proj"]
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {"r": 4, "target_modules": ["o_proj"], "base_model_name_or_path": folder}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    found = options({}, {"path": str(adapter)})
    assert found["--model"] == [folder] and found["--max-lora-rank"] == ["8"]
    with pytest.raises(ConfigError, match="rank 600"):
        options({}, {"path": folder, "lora": {"rank": 600}})


def test_the_plugin_is_found_without_ludus(tmp_path: Path) -> None:
    """On its path alone an interpreter finds the entry point that vLLM looks for, and not this package."""
    script = (
        "import importlib.util\n"
        "from importlib.metadata import entry_points\n"
        "(found,) = entry_points(group='vllm.general_plugins')\n"
        "print(found.load().__name__, importlib.util.find_spec('ludus'))\n"
    )
    folder = plugin_folder()
    assert folder == plugin_folder() and tmp_path in folder.parents
    asked = [sys.executable, "-S", "-c", script]
    said = subprocess.run(
        asked, env={"PYTHONPATH": str(folder)}, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert said.stdout == "register None\n"


@pytest.mark.parametrize("lora", [None, {"rank": 16, "target_modules": ["q_proj"]}])
def test_every_option_is_one_of_vllms(folder: str, lora: dict[str, Any] | None) -> None:
    """By its wheel, with everything given that can be."""
    given = {"kv_bytes": 2**30, "max_running": 8, "max_batch_tokens": 512, "tensor_parallel_size": 2}
    model = {"path": folder, "lora": lora, "context_length": 4096}
    asked = options({**given, "data_parallel_size": 2, "args": {"enforce_eager": True}}, model)
    named = {name.removeprefix("--").removeprefix("no-").replace("-", "_") for name in asked}
    assert named - set(RECORD["options"]) == set()


def test_nccl_is_announced_in_vllms_words() -> None:
    """What `NcclTransfer` sends are fields of the classes that read it."""
    sent = ("nccl_unique_id_b64", "rank_offset", "packed", "world_size")
    assert set(sent) <= set(RECORD["classes"]["NCCLWeightTransferInitInfo"])
    assert {"names", "dtype_names", "shapes"} == set(RECORD["classes"]["NCCLWeightTransferUpdateInfo"])


def test_weights_in_four_bits_are_so_in_vllm_too(folder: str) -> None:
    """Beneath the same adapter, unless the run says otherwise."""
    model = {"path": folder, "quantization": "nf4", "lora": {"rank": 4, "target_modules": ["q_proj"]}}
    assert options({}, model)["--quantization"] == ["bitsandbytes"]
    assert options({"args": {"quantization": "fp8"}}, model)["--quantization"] == ["fp8"]
