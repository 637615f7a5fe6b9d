"""Cores of one machine, shared among the processes of a run that compute on it at the same time."""

from __future__ import annotations

import pytest

from ludus.api.cores import shared_cores
from ludus.config import load_config

SERVER, AHEAD = "engine.kind=server", "rollout.max_head_offpolicyness=1"


@pytest.mark.parametrize(
    ("overrides", "cores", "shares"),
    [
        ([], 8, {}),
        ([SERVER], 8, {"head": 8, "engine": 8}),  # they take turns
        ([SERVER, "engine.replicas=3"], 8, {"head": 8, "engine": 2}),
        ([SERVER, "engine.replicas=3", AHEAD], 8, {"head": 2, "engine": 2}),
        ([SERVER, AHEAD], 1, {"head": 1, "engine": 1}),
        ([SERVER, AHEAD, "scheduler.engine.cpus=6"], 8, {"head": 2, "engine": 6}),
        ([SERVER, AHEAD, "scheduler.engine.cpus=0.5"], 8, {"head": 7, "engine": 1}),
        ([SERVER, AHEAD, "scheduler.engine.cpus=9"], 8, {"head": 1, "engine": 9}),
        (["trainer.ranks=4"], 8, {"head": 2, "trainer": 2}),
        (["trainer.ranks=4", "scheduler.trainer.cpus=1"], 8, {"head": 5, "trainer": 1}),
        (["trainer.ranks=2", SERVER, "engine.replicas=2"], 8, {"head": 4, "trainer": 4, "engine": 4}),
        (["trainer.ranks=2", SERVER, "engine.replicas=2", AHEAD], 8, {"head": 2, "trainer": 2, "engine": 2}),
        ([SERVER, "engine.urls=[http://127.0.0.1:9]"], 8, {}),
        (["engine.kind=vllm", "engine.replicas=2"], 8, {}),
        (["trainer.ranks=2", "scheduler.type=ray"], 8, {}),
    ],
)
def test_those_that_compute_at_once_share_the_cores(
    overrides: list[str], cores: int, shares: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is given some has them, and the others share what is left, at least one each."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert shared_cores(load_config(overrides=overrides), cores) == shares


def test_nobody_is_given_more_than_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what the configuration gives."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert shared_cores(load_config(overrides=[SERVER]), 8) == {"head": 3, "engine": 3}
    assert shared_cores(load_config(overrides=[SERVER, "scheduler.engine.cpus=6"]), 8) == {"head": 3, "engine": 6}
    assert shared_cores(load_config(overrides=[SERVER, "engine.replicas=4"]), 8) == {"head": 3, "engine": 2}
