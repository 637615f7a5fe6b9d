"""A model that is small enough to be trained in a test, and a backend around it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ludus
from ludus.compat.art.local_backend import LocalBackend
from ludus.compat.art.trainable import TrainableModel

SMALL = {
    "model": {"dtype": "float32", "lora": {"rank": 4, "alpha": 8.0}},
    "engine": {"kv_bytes": 2**22},
    "trainer": {"optimizer": {"lr": 1e-2}},
    "gconfig": {"max_new_tokens": 8},
}


@pytest.fixture
def make_backend(tmp_path: Path) -> Callable[..., LocalBackend]:
    """A backend whose projects lie in the test's folder; keys of the configuration differ as given."""

    def make(**changes: Any) -> LocalBackend:
        return LocalBackend(path=tmp_path / "projects", config=ludus.Config(**{**SMALL, **changes}))

    return make


@pytest.fixture
def make_model(tiny_model_folder: Path, tmp_path: Path) -> Callable[..., TrainableModel[Any]]:
    """A model of the test's project with the tiny Llama as its base."""

    def make(name: str = "agent", **fields: Any) -> TrainableModel[Any]:
        known = {"project": "p", "base_model": str(tiny_model_folder), "base_path": str(tmp_path / "projects")}
        return TrainableModel(name=name, **{**known, **fields})

    return make
