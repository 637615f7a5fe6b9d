"""A run whose trainer has two ranks: the head, and a process that a launcher started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import ludus
from ludus.api.replay import replay
from ludus.cluster.ranks import open_ranks
from ludus.cluster.supervise import SupervisionPolicy
from ludus.runs.store import RunStore
from ludus.trainer.group import TorchRanks

ROWS = [{"question": f"Guess. It is higher than {bound}."} for bound in range(5)]


class Vowels:
    """One turn; the reward is the share of vowels."""

    async def run(self, data: dict[str, Any], *, base_url: str, http_client: Any, **_: Any) -> float:
        body = {"messages": [{"role": "user", "content": data["question"]}], "max_tokens": 6}
        answer = (await http_client.post(base_url + "/chat/completions", json=body)).json()
        return sum(letter in "aeiou" for letter in answer["choices"][0]["message"]["content"] or "") / 6


def make_config(model: Path, root: Path, **changes: Any) -> ludus.Config:
    values: dict[str, Any] = {
        "name": "cut",
        "run_root": str(root),
        "seed": 3,
        "model": {"path": str(model), "dtype": "float32"},
        "engine": {"kv_bytes": 2**22},
        "gconfig": {"n_samples": 3},
        "rollout": {"max_head_offpolicyness": 0},
        "train_dataset": {"batch_size": 2},
        "trainer": {"optimizer": {"lr": 1e-3}, "row_tokens": 64},
        "total_train_steps": 2,
    }
    return ludus.Config(**{**values, **changes})


def losses(folder: Path) -> list[float]:
    with RunStore.open(folder) as store:
        return [metrics["train/loss"] for _, metrics in store.metrics()]


def test_a_run_on_two_ranks_is_resumed_on_one(tiny_model_folder: Path, tmp_path: Path) -> None:
    """It trains as on one rank, its model loads with plain transformers, and one rank goes on from its checkpoint."""
    cut = {"trainer": {"optimizer": {"lr": 1e-3}, "row_tokens": 64, "ranks": 2}}
    summary = ludus.Trainer(make_config(tiny_model_folder, tmp_path, **cut), ROWS).train(Vowels)
    alone = ludus.Trainer(make_config(tiny_model_folder, tmp_path, name="alone"), ROWS).train(Vowels)
    assert summary.steps == 2 and summary.ledger == alone.ledger
    assert losses(tmp_path / "cut") == pytest.approx(losses(tmp_path / "alone"), rel=1e-3, abs=1e-6)
    assert summary.model is not None
    transformers.AutoModelForCausalLM.from_pretrained(summary.model)
    assert (tmp_path / "cut" / "roles" / "trainer-0.log").exists()
    config = make_config(tiny_model_folder, tmp_path, total_train_steps=3)
    resumed = ludus.Trainer(config, ROWS).train(Vowels, resume=True)
    assert resumed.steps == 3 and len(losses(tmp_path / "cut")) == 3


def test_a_run_on_two_ranks_is_replayed(tiny_model_folder: Path, tmp_path: Path) -> None:
    """From its record, on as many ranks: the state that each of them saved is the same to the last bit, though the run
    had an engine elsewhere and the replay has none."""
    cut = {"trainer": {"optimizer": {"lr": 1e-3}, "row_tokens": 64, "ranks": 2}, "engine": {"kind": "server"}}
    ludus.Trainer(make_config(tiny_model_folder, tmp_path, **cut), ROWS).train(Vowels)
    replayed = replay(tmp_path / "cut", load=lambda path, keys: ludus.load_config(path, list(keys)))
    assert replayed.weights_equal is True and not replayed.changed
    assert losses(tmp_path / "cut-replay") == losses(tmp_path / "cut")


def test_an_engine_elsewhere_gets_its_weights_from_the_ranks(tiny_model_folder: Path, tmp_path: Path) -> None:
    """The head holds no whole model; after each publish the engine's logprobs are those that the ranks compute."""
    changes = {"trainer": {"optimizer": {"lr": 1e-3}, "row_tokens": 64, "ranks": 2}, "engine": {"kind": "server"}}
    config = make_config(tiny_model_folder, tmp_path, **changes)
    summary = ludus.Trainer(config, ROWS).train(Vowels)
    assert summary.steps == 2
    with RunStore.open(tmp_path / "cut") as store:
        gaps = [metrics["train/logprob_gap_max"] for _, metrics in store.metrics()]
    assert max(gaps) < 1e-4  # the second batch was sampled with what the first one made
    assert summary.model is not None
    transformers.AutoModelForCausalLM.from_pretrained(summary.model)


def test_a_teacher_is_asked_by_the_head(tiny_model_folder: Path, tmp_path: Path) -> None:
    """What it says of tokens reaches both ranks: they learn what one learns of it alone."""
    cut = {"trainer": {"optimizer": {"lr": 1e-3}, "row_tokens": 64, "ranks": 2}}
    taught = {"teacher": {"kind": "policy", "hint": {"column": "question"}}, "algorithm": {"name": "distillation"}}
    ludus.Trainer(make_config(tiny_model_folder, tmp_path, **cut, **taught), ROWS).train(Vowels)
    ludus.Trainer(make_config(tiny_model_folder, tmp_path, name="alone", **taught), ROWS).train(Vowels)
    assert losses(tmp_path / "cut") == pytest.approx(losses(tmp_path / "alone"), rel=1e-3, abs=1e-6)


class KillRank(ludus.Observer):
    """An observer that kills the other rank after the first step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def on_step(self, step: int, metrics: Any) -> None:
        with RunStore.open(self._folder) as store:
            assert store.metrics()
        (role,) = [
            int(each["process"].removeprefix("pid "))
            for each in json.loads((self._folder / "roles.json").read_text())["roles"]
        ]
        os.kill(role, signal.SIGKILL)


def test_a_lost_rank_ends_the_run_by_name_and_it_goes_on(tiny_model_folder: Path, tmp_path: Path) -> None:
    """The message names the process that was killed; the run goes on from its checkpoint, on two ranks again."""
    changes = {
        "trainer": {"optimizer": {"lr": 1e-3}, "row_tokens": 64, "ranks": 2},
        "checkpoint": {"every_steps": 1},
        "total_train_steps": 3,
    }
    config = make_config(tiny_model_folder, tmp_path, **changes)
    with pytest.raises(ludus.BackendError, match=r"trainer-0 \(pid \d+\) ended with signal 9"):
        ludus.Trainer(config, ROWS).train(Vowels, observer=KillRank(tmp_path / "cut"))
    summary = ludus.Trainer(config, ROWS).train(Vowels, resume=True)
    assert summary.steps == 3
    summary.ledger.check()


MEETS = """
import asyncio, signal, sys
import ludus
from ludus.cluster.ranks import open_ranks
from ludus.processes.gather import first_of
from ludus.trainer.group import TCPStore, _rank_key

class Cluster:
    async def start(self, name, count, policy):
        TCPStore(**{"host_name": policy.task["host"], "port": policy.task["port"]}).set(_rank_key(1), "taken")

    async def unless_lost(self, work):
        async def learn():
            await asyncio.sleep(1)
            if sys.argv[1] == "lost":
                raise ludus.BackendError("trainer-0 ended with signal 9")
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(600)

        return await first_of(work, learn())

    async def stop(self, name):
        pass

    def check(self):
        pass

async def main():
    config = ludus.Config(model={"path": "none", "device": "cpu"}, trainer={"ranks": 2})
    async with open_ranks(config, Cluster(), None, sampling=None):
        pass

asyncio.run(main())
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("how", "code", "said"), [("lost", 1, "trainer-0 ended with signal 9"), ("interrupted", 130, "KeyboardInterrupt")]
)
def test_nobody_waits_for_a_rank_that_was_lost_while_they_met(how: str, code: int, said: str) -> None:
    """torch would, for as long as an evaluation may take: the run says who was lost, and leaves; and so it does when it
    is told to."""
    done = subprocess.run([sys.executable, "-c", MEETS, how], capture_output=True, text=True, timeout=240)
    assert done.returncode == code and said in done.stderr


def test_a_lost_rank_breaks_off_what_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On cards nobody would notice it until the time of a sum is over."""

    class Ranks:
        size = 2
        is_aborted = False
        was_closed_broken: bool | None = None

        def abort(self) -> None:
            self.is_aborted = True

        def close(self, *, is_broken: bool) -> None:
            self.was_closed_broken = is_broken

    class Cluster:
        policy: SupervisionPolicy

        async def start(self, name: str, count: int, policy: SupervisionPolicy) -> None:
            self.policy = policy

        async def unless_lost(self, work: Any) -> Any:
            return await work

        async def stop(self, name: str) -> None:
            pass

        def check(self) -> None:
            pass

    cluster: Any = Cluster()
    ranks = Ranks()
    monkeypatch.setattr(TorchRanks, "lead", lambda *_, **__: ranks)
    monkeypatch.setattr("ludus.cluster.ranks._own_trainer", lambda *_: None)
    config = ludus.load_config(overrides=["model.device=cpu", "trainer.ranks=2"])

    async def run() -> None:
        async with open_ranks(config, cluster, None, sampling=None):  # type: ignore[arg-type]
            assert not ranks.is_aborted
            await cluster.policy.on_lost("trainer", 0)
            assert ranks.is_aborted

    asyncio.run(run())
    assert ranks.was_closed_broken


def test_apple_gpus_have_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is said before anything is started."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    config = ludus.load_config(overrides=["model.device=mps", "trainer.ranks=2"])

    async def meet() -> None:
        async with open_ranks(config, None, None, sampling=None):  # type: ignore[arg-type]
            pass

    with pytest.raises(ludus.ConfigError, match=r"Apple's GPUs: set trainer\.ranks=1, or model\.device=cpu"):
        asyncio.run(meet())
