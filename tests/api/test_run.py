"""What is checked before a run's folder is made."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ludus.api import run
from ludus.config import load_config
from ludus.errors import UserError


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
