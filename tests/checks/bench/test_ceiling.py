"""What a decoding step reads, counted by hand."""

from __future__ import annotations

from pathlib import Path

from ludus.checks.bench.ceiling import decoding_bytes, linear_weights
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
