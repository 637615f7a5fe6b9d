"""What a decoding step reads, counted by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ludus.checks.bench import ceiling
from ludus.checks.bench.ceiling import decoding_bytes, linear_weights, seconds
from ludus.checks.bench.machine import card
from ludus.models.load import load_model
from ludus.models.settings import ModelSettings


def test_a_decoding_step_reads_weights_once_and_every_cached_token(tiny_model_folder: Path) -> None:
    """Linear layers and head, whatever the number of requests; a key and a value for each layer, head and token."""
    model = load_model(ModelSettings(path=str(tiny_model_folder), dtype="float32"))
    weights = decoding_bytes(model, 0)
    assert weights == 4 * sum(weight_VK.numel() for weight_VK in linear_weights(model))
    config = model.config
    a_token = 4 * 2 * config.num_layers * config.num_kv_heads * config.head_dim
    assert decoding_bytes(model, 100) - weights == 100 * a_token


def test_a_card_is_waited_for_before_the_clock_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls return before it has done them; several are queued, so that it is not idle between two."""
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append("waited"))
    clock = SimpleNamespace(perf_counter=lambda: done.append("clock") or float(len(done)))
    monkeypatch.setattr(ceiling, "time", clock)
    seconds(lambda: done.append("call"), torch.device("cuda"))
    assert done == ["call", "call", "waited", "clock", *["call"] * 10, "waited", "clock"]


def test_the_card_of_a_measurement_is_named() -> None:
    """With the most that was held of it; nothing where none was used."""
    memory = {"memory_reserved": lambda: 2**20, "max_memory_reserved": lambda: 3 * 2**20}
    used = SimpleNamespace(is_initialized=lambda: True, get_device_name=lambda: "NVIDIA H100", **memory)
    assert card(SimpleNamespace(cuda=used)) == {"card": "NVIDIA H100", "peak_card_mb": 3.0}
    assert card(SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False))) == {}
