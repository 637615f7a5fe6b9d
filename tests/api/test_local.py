"""What a run leaves to its machine is decided once, and recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.api.local import settled
from ludus.config import Config, load_config
from ludus.machine import Machine
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


def test_cores_are_shared_once_and_a_resumed_run_keeps_its_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a larger machine too: other numbers of threads round sums otherwise. Other numbers of processes share anew, as
    do those that a smaller machine has no cores for, and what is said is left alone."""

    def find(cores: int) -> None:
        monkeypatch.setattr(Machine, "look", lambda **_: Machine(cores))

    def make(ranks: int, **cpus: float) -> Config:
        trainer = {"ranks": ranks}
        where = {"run_root": str(tmp_path), "model": {"dtype": "float32"}, "scheduler": {"trainer": cpus}}
        return Config(name="here", trainer=trainer, **where)

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    find(8)
    begun = settled(make(2))
    assert begun.scheduler.trainer.cpus == 4 and begun.scheduler.engine.cpus is None
    begun.folder.mkdir()
    write_config(begun.folder, begun.to_yaml())
    find(32)
    assert settled(make(2), goes_on=True).scheduler.trainer.cpus == 4
    assert settled(make(4), goes_on=True).scheduler.trainer.cpus == 8
    assert settled(make(2)).scheduler.trainer.cpus == 16
    assert settled(make(2, cpus=1.0), goes_on=True).scheduler.trainer.cpus == 1
    assert settled(begun) is begun
    find(3)
    assert settled(make(2), goes_on=True).scheduler.trainer.cpus == 1
    alone = make(1)
    assert settled(alone) is alone
