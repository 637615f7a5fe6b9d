"""Engines that are servers: how they get the weights, and what a kind cannot do is said at its start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ludus.api import servers
from ludus.api.servers import open_files, published_bytes
from ludus.config import Config
from ludus.engines.weights import SHARED_MEMORY, LoadedWeights, WeightFiles
from ludus.errors import ConfigError, UserError
from ludus.models.load import LoadedModel, load_model
from ludus.models.settings import LoraSettings, ModelSettings


@pytest.fixture(scope="module")
def whole(tiny_model_folder: Path) -> LoadedModel:
    return load_model(ModelSettings(path=str(tiny_model_folder), dtype="float32"))


@pytest.fixture(scope="module")
def adapted(tiny_model_folder: Path) -> LoadedModel:
    return load_model(ModelSettings(path=str(tiny_model_folder), dtype="float32", lora=LoraSettings(rank=2)))


@pytest.mark.parametrize(
    ("engine", "place"),
    [
        ({"kind": "server"}, "memory"),
        ({"kind": "server", "weights": "stream"}, None),
        ({"kind": "server", "urls": ["http://node7:8100"]}, None),
        ({"kind": "server", "urls": ["http://node7:8100"], "weights": "disk"}, "run"),
        ({"kind": "server", "urls": ["http://127.0.0.1:8100"], "weights": "auto"}, "memory"),
        ({"kind": "sglang", "urls": ["http://node7:30000"]}, "run"),
        ({"kind": "sglang", "urls": ["http://127.0.0.1:30000"]}, "memory"),
    ],
)
def test_weights_travel_where_both_reach_them(
    whole: LoadedModel, tmp_path: Path, engine: dict[str, Any], place: str | None
) -> None:
    """Through memory on one machine; else they are sent, or lie in the run's folder."""
    files = open_files(Config(name="r", run_root=str(tmp_path), engine=engine), whole)
    where = None if files is None else "run" if files.folder == tmp_path / "r" / "weights" else "memory"
    assert where == place
    if files is not None:
        files.close()


@pytest.mark.parametrize("lora", [False, True])
def test_shared_memory_that_is_too_small_is_said_at_the_start(
    lora: bool, whole: LoadedModel, adapted: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """As the 64 MB that containers have: where nobody asked for it the run's folder is used, and the warning says how
    to have more; where somebody did, or the disk is full as well, nothing is begun."""
    model = adapted if lora else whole
    room = {SHARED_MEMORY: published_bytes(model) - 1}
    monkeypatch.setattr(servers, "free_bytes", lambda folder: room.get(folder, published_bytes(model)))

    def opened(weights: str) -> WeightFiles | None:
        return open_files(
            Config(name="r", run_root=str(tmp_path), engine={"kind": "server", "weights": weights}), model
        )

    files = opened("auto")
    assert files is not None and files.folder == tmp_path / "r" / "weights"
    assert "--shm-size" in caplog.text
    with pytest.raises(UserError, match=r"engine\.weights=disk"):
        opened("shared_memory")
    room[SHARED_MEMORY] += 1
    memory = opened("auto")
    assert memory is not None and SHARED_MEMORY in memory.folder.parents
    memory.close()
    monkeypatch.setattr(servers, "free_bytes", lambda _: 0)
    with pytest.raises(UserError, match="set run_root to a folder of a larger disk"):
        opened("disk")


def test_what_is_published_fits_into_what_was_counted(whole: LoadedModel, tmp_path: Path) -> None:
    """While a version is written, the one before is still there."""
    files, most = WeightFiles(tmp_path / "w"), 0
    for version in (1, 2):
        files.write(version, LoadedWeights(whole))
        most += sum(each.stat().st_size for each in files.folder.iterdir())
    assert most <= published_bytes(whole) <= 1.2 * most


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (
            {"kind": "server", "weights": "nccl"},
            "'nccl' is no way to a server; there are auto, shared_memory, disk, stream",
        ),
        ({"kind": "server", "weights": "lora"}, "with model.lora, lora"),
        ({"kind": "sglang", "urls": ["http://h:1"], "weights": "stream"}, "is no way to a sglang"),
    ],
)
def test_a_way_that_a_kind_does_not_have_is_refused(whole: LoadedModel, engine: dict[str, Any], said: str) -> None:
    """With the ways that it has."""
    with pytest.raises(ConfigError, match=said):
        open_files(Config(engine=engine), whole)


def test_adapters_travel_alone_to_our_server(adapted: LoadedModel, tmp_path: Path) -> None:
    """By file as peft lays them out on this machine, sent to another."""
    near, far = (
        open_files(Config(run_root=str(tmp_path), engine={"kind": "server", "weights": "lora", **urls}), adapted)
        for urls in ({}, {"urls": ["http://node7:8100"]})
    )
    assert near is not None and near.adapter_config is not None and far is None
    near.close()
