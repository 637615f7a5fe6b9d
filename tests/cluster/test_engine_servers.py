"""Engines that are processes of the run: a run with one is the run without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ludus
from ludus.runs.store import RunStore
from tests.api.test_trainer import ROWS, Talker, make_config


@pytest.mark.timeout(300)  # the server is a process of its own, which loads torch
def test_a_run_with_our_server_samples_the_same_tokens(tiny_model_folder: Path, tmp_path: Path) -> None:
    """The engine in a process of its own samples what the one in this process samples, after each publish too.

    Not to the last bit of a logprob: what shares a step with a call is a matter of time.
    """
    for kind in ("local", "server"):
        engine = {"kv_bytes": 2**22, "kernels": "eager", "kind": kind}
        config = make_config(tiny_model_folder, tmp_path / kind, engine=engine, total_train_steps=2)
        ludus.Trainer(ludus.Config(**config.model_dump(exclude_unset=True)), ROWS).train(Talker)
    assert sampled(tmp_path / "server" / "tiny") == sampled(tmp_path / "local" / "tiny")
    lines = (tmp_path / "server" / "tiny" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert all(step["train/logprob_gap_max"] < 1e-3 for step in steps if "train/logprob_gap_max" in step)
    assert "serving" in (tmp_path / "server" / "tiny" / "roles" / "engine-0.log").read_text()


def sampled(run: Path) -> dict[str, list[tuple[int, ...]]]:
    """The tokens of every episode of a run."""
    with RunStore.open(run) as store:
        return {each.id: [turn.sampled.token_ids for turn in each.session.turns] for each in store.episodes()}
