"""What is checked before a run's folder is made, and what a resumed run goes on with."""

from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import ludus
from ludus.api import run
from ludus.config import load_config
from ludus.errors import UserError
from ludus.machine import Machine
from ludus.models.threads import choose_threads
from tests.api.test_trainer import ROWS, Steps, Talker, make_config


def test_a_disk_without_room_for_a_checkpoint_is_said_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Masters, moments and the saved model count; what stays besides is a warning."""
    weight = torch.zeros(1000, dtype=torch.bfloat16)
    learner = SimpleNamespace(model=SimpleNamespace(trainable={"w": weight}))
    config = load_config(None, [f"run_root={tmp_path}", "checkpoint.keep=2"])

    def check(free: int) -> None:
        monkeypatch.setattr(run, "free_bytes", lambda folder: free if folder == config.folder else 0)
        run._check_disk(config, learner)  # type: ignore[arg-type]

    with pytest.raises(UserError, match="set run_root to a folder of a larger disk"):
        check(13_999)
    check(14_000)
    assert "checkpoint.keep=1" in caplog.text
    caplog.clear()
    check(3 * 12_000 + 2000)
    assert not caplog.records


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Has the next run find so many of two cores free, as a process of its own would; the process computes as before
    after the test."""
    before = torch.get_num_threads()

    def find_free(num: int) -> None:
        monkeypatch.setattr(Machine, "look", lambda *_, **__: Machine(2, inf, 2.0 - num))
        torch.set_num_threads(2)
        choose_threads.cache_clear()

    yield find_free
    choose_threads.cache_clear()
    torch.set_num_threads(before)


def test_a_resumed_run_computes_with_as_many_threads_as_before(
    tiny_model_folder: Path, tmp_path: Path, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever computes beside it then: other numbers of threads round sums otherwise. OMP_NUM_THREADS decides."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    watcher = Steps()
    for step, (num_free, told) in enumerate([(2, None), (1, None), (1, "1")], 1):
        threads(num_free)
        if told is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", told)
            torch.set_num_threads(int(told))
        config = make_config(tiny_model_folder, tmp_path, total_train_steps=step)
        ludus.Trainer(config, ROWS).train(Talker, resume=step > 1, observer=watcher)
    assert [metrics["train/threads"] for _, metrics in watcher.steps] == [2.0, 2.0, 1.0]
