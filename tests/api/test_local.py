"""What a run leaves to its machine is decided once, and recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.api.local import settled
from ludus.config import Config, load_config
from ludus.models import dtype
from ludus.models.dtype import ProductTimes
from ludus.runs.folder import write_config


def test_auto_becomes_a_type_that_a_resumed_run_keeps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The head decides; a run that goes on where fp32 is faster stays what it was; a named type is left alone."""
    config = Config(name="here", run_root=str(tmp_path))
    monkeypatch.setattr(dtype, "product_times", lambda: ProductTimes(1.0, 2.0))
    begun = settled(config)
    assert (config.model.dtype, begun.model.dtype) == ("auto", "bfloat16")
    config.folder.mkdir()
    write_config(config.folder, begun.to_yaml())
    assert load_config(config.folder / "config.yaml").model.dtype == "bfloat16"
    monkeypatch.setattr(dtype, "product_times", lambda: ProductTimes(2.0, 1.0))
    assert settled(config).model.dtype == "float32"
    assert settled(config, goes_on=True).model.dtype == "bfloat16"
    assert settled(begun) is begun
    (config.folder / "config.yaml").write_text("damaged: [")
    assert settled(config, goes_on=True).model.dtype == "float32"
