"""Runs that learn from the preferences of their own groups."""

from __future__ import annotations

from pathlib import Path

import pytest

import ludus
from tests.api.test_trainer import ROWS, Steps, Talker, ledger_of, make_config, weights_of


@pytest.mark.parametrize("name", ["dpo", "kto", "orpo"])
def test_a_run_accounts_for_every_token_and_resumes(name: str, tiny_model_folder: Path, tmp_path: Path) -> None:
    """One of three members is not paired in each group; a run that was resumed ends in the same weights."""
    watcher = Steps()
    config = make_config(tiny_model_folder, tmp_path / "whole", algorithm={"name": name})
    ludus.Trainer(config, ROWS).train(Talker, observer=watcher)
    for _, metrics in watcher.steps:
        sampled, accounted = ledger_of(metrics)
        assert sampled == accounted
    assert any(metrics.get("ledger/masked_not_paired") for _, metrics in watcher.steps)
    parts = tmp_path / "parts"
    half = make_config(tiny_model_folder, parts, algorithm={"name": name}, total_train_steps=2)
    ludus.Trainer(half, ROWS).train(Talker)
    whole = make_config(tiny_model_folder, parts, algorithm={"name": name})
    assert ludus.Trainer(whole, ROWS).train(Talker, resume=True).steps == 3
    assert weights_of(parts / "tiny") == weights_of(tmp_path / "whole" / "tiny")
