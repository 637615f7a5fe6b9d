"""A run's vLLM servers, from its configuration: what is refused before anything is sampled."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from ludus.api.local import settled
from ludus.api.servers import connect, open_files
from ludus.config import Config
from ludus.engines.vllm.settings import VllmSettings
from ludus.errors import ConfigError, UserError
from ludus.settings import idle_keys
from ludus.text.tokenizer import Tokenizer
from tests.engines.vllm.vllm_server import StandIn, serving


@dataclass
class Model:
    """What is asked of a loaded model."""

    trainable: ClassVar[dict[str, Any]] = {}
    adapter_config: dict[str, Any] | None = None

    @property
    def adapter(self) -> object:
        return self.adapter_config


def config(tmp_path: Path, **engine: Any) -> Config:
    return Config(run_root=str(tmp_path), engine={"kind": "vllm", **engine})


def test_sampling_that_cannot_be_recorded_is_refused_at_the_start(tokenizer_folder: Path) -> None:
    """Of training and of evaluations; what can be served is connected to."""
    tokenizer = Tokenizer.load(tokenizer_folder)

    async def scenario(url: str) -> None:
        for changed in ({"gconfig": {"temperature": 0.005}}, {"eval_gconfig": {"temperature": 0.005}}):
            with pytest.raises(UserError, match=r"temperature=0.005 is raised to 0.01"):
                await connect(Config(engine={"kind": "vllm", "urls": [url]}, **changed), url, tokenizer, None, None)
        engine = await connect(Config(engine={"kind": "vllm", "urls": [url]}), url, tokenizer, None, None)
        await engine.close()

    with serving(StandIn(lambda _: "blue", tokenizer)) as url:
        asyncio.run(scenario(url))


def test_files_lie_where_both_sides_see_them(tmp_path: Path) -> None:
    """In memory for engines of this machine, in the run's folder for others; between cards there are none."""
    near = open_files(config(tmp_path), Model())
    far = open_files(config(tmp_path, urls=["http://gpu-box:8000"]), Model({"r": 1}))
    assert near is not None and tmp_path not in near.folder.parents and near.adapter_config is None
    assert far is not None and far.folder == tmp_path / "run" / "weights" and far.adapter_config == {"r": 1}
    assert open_files(config(tmp_path, weights="nccl"), Model()) is None
    near.close()


@pytest.mark.parametrize(
    ("route", "adapter_config", "match"),
    [
        ("stream", None, "'stream' is no way to a vllm"),
        ("lora", None, "with model.lora, lora"),
        ("nccl", {"r": 1}, "for whole models; adapters are sent by"),
    ],
)
def test_ways_that_do_not_lead_there_are_refused(
    tmp_path: Path, route: str, adapter_config: dict[str, Any] | None, match: str
) -> None:
    """Each names the ways there are."""
    with pytest.raises(ConfigError, match=match):
        open_files(config(tmp_path, weights=route), Model(adapter_config))


@pytest.mark.parametrize(
    ("engine", "model", "device", "way"),
    [
        ({"placement": "shared"}, {}, "cuda:0", "ipc"),
        ({"placement": "shared"}, {}, "cpu", "auto"),
        ({"placement": "shared", "weights": "disk"}, {}, "cuda:0", "disk"),
        ({"placement": "shared"}, {"lora": {"rank": 2}}, "cuda:0", "auto"),
        ({}, {}, "cuda:0", "auto"),
    ],
    ids=["shared", "processor", "given", "lora", "split"],
)
def test_whole_models_are_handed_over_within_a_shared_card(
    engine: dict[str, Any],
    model: dict[str, Any],
    device: str,
    way: str,
    tiny_model_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is settled before anything starts, so that vLLM and the run know the same; adapters go as ever, and so does
    what was told how to go."""
    monkeypatch.setattr("ludus.models.device.choose_device", lambda _: torch.device(device))
    asked = Config(
        model={"path": str(tiny_model_folder), "dtype": "float32", **model}, engine={"kind": "vllm", **engine}
    )
    found = settled(asked).engine
    assert isinstance(found, VllmSettings) and found.weights == way


def test_keys_that_vllm_has_act() -> None:
    """Memory and batch of a server that is started; those of our own engine alone do not act."""
    settings = VllmSettings(kv_bytes=2**28, max_running=8, keep_kv_on_publish=False)
    assert settings.max_running == 8
    with pytest.raises(ConfigError, match="unknown key 'kernels'"):
        VllmSettings(kernels="eager")  # type: ignore[call-arg]
    (idle,) = idle_keys(VllmSettings(kv_bytes=2**28, urls=("http://127.0.0.1:1",)))
    assert (idle.key, idle.why) == ("kv_bytes", "kind is 'vllm' and urls are given")
    assert Config(engine={"kind": "vllm", "kernels": "eager"}).engine == VllmSettings()
