"""Weights in files: what is written is what safetensors reads, once for each version, and the newest alone stays."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from ludus.engines import weights
from ludus.engines.weights import WeightFiles, write_safetensors


class Source:
    """Tensors that count how often they are asked for."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = tensors
        self.num_asked = 0

    def named_tensors(self) -> Iterable[tuple[str, Any]]:
        self.num_asked += 1
        yield from self.tensors.items()

    def copy_into_shared(self) -> None:
        pass


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    whole = torch.randn(6, 8)
    return {
        "float": whole,
        "half": torch.randn(4, 3).to(torch.bfloat16),
        "with gaps": whole[:, ::2],
        "turned": torch.randn(3, 5).T,
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
    }


@pytest.mark.parametrize("header_bytes", [2**20, 64])
def test_a_file_is_read_by_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header_bytes: int) -> None:
    """Every tensor comes back as it was, also if the header outgrows the room that was kept for it."""
    monkeypatch.setattr(weights, "HEADER_BYTES", header_bytes)
    path = tmp_path / "all.safetensors"
    write_safetensors(path, tensors().items())
    found = load_file(path)
    assert found.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
    with safe_open(path, framework="pt") as file:
        assert file.offset_keys() == list(tensors())
    assert list(tmp_path.iterdir()) == [path]


def test_a_version_is_written_once(tmp_path: Path) -> None:
    """Several engines ask for one version and get the same file; the one before is gone."""
    files, source = WeightFiles(tmp_path / "weights"), Source(tensors())
    first = files.write(3, source)
    assert files.write(3, source) == first and source.num_asked == 1
    second = files.write(4, source)
    assert second.exists() and not first.exists() and source.num_asked == 2
    files.close()
    assert not (tmp_path / "weights").exists()


def test_an_adapter_is_a_folder_as_peft_writes_it(tmp_path: Path) -> None:
    """Weights and configuration lie under the names that peft reads."""
    files = WeightFiles(tmp_path, adapter_config={"r": 4, "peft_type": "LORA"})
    first = files.write(1, Source(tensors()))
    assert json.loads((first / "adapter_config.json").read_text()) == {"r": 4, "peft_type": "LORA"}
    assert load_file(first / "adapter_model.safetensors").keys() == tensors().keys()
    for version in (2, 3):  # the one before stays for engines that are given the newest later
        files.write(version, Source(tensors()))
        assert sorted(path.name for path in tmp_path.iterdir()) == [f"v{version - 1}", f"v{version}"]


def test_shared_memory_has_a_folder_of_its_own() -> None:
    """Two runs do not see each other's files."""
    ours, theirs = WeightFiles.in_shared_memory(), WeightFiles.in_shared_memory()
    try:
        assert ours.folder != theirs.folder and ours.folder.is_dir()
        assert repr(ours) == f"WeightFiles({str(ours.folder)!r}, newest=None)"
    finally:
        ours.close()
        theirs.close()


def test_what_a_killed_process_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder goes when the next one is made; those of living processes and those just made stay."""
    monkeypatch.setattr(weights, "SHARED_MEMORY", tmp_path)
    living = WeightFiles.in_shared_memory()
    abandoned, young = (tmp_path / f"{weights._PREFIX}{name}" for name in ("abandoned", "young"))
    for folder in (abandoned, young):
        folder.mkdir()
        (folder / "v0.safetensors").write_bytes(b"weights")
    for folder in (abandoned, living.folder):
        os.utime(folder, (0, 0))
    next_one = WeightFiles.in_shared_memory()
    assert sorted(tmp_path.iterdir()) == sorted([living.folder, young, next_one.folder])
    living.close()
    next_one.close()
    assert list(tmp_path.iterdir()) == [young]
