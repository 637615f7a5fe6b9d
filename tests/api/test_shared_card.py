"""Whole runs on one card that vLLM, played by a stand-in, and the trainer have in turns."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ludus
from ludus.config import Config
from ludus.errors import BackendError
from ludus.text.tokenizer import Tokenizer
from ludus.trainer.step import ModelTrainer
from ludus.types import Call
from tests.api.test_trainer import ROWS, Steps, Talker, ledger_of, make_config
from tests.engines.vllm.test_vllm_sleep import ADAPTED, FALLS_ASLEEP, PAGES_WAKE, UPDATE, WEIGHTS_WAKE
from tests.engines.vllm.vllm_server import SIZES, StandIn, serving

WAKES = [WEIGHTS_WAKE, PAGES_WAKE, "/resume"]
KILLED = """
import json, os, signal, sys
import ludus
from ludus.config import Config
from ludus.trainer.step import ModelTrainer
from tests.api.test_trainer import ROWS, Talker
train_batch = ModelTrainer.train_batch

def dies_in_its_turn(self, *args, **how):
    if self.version == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return train_batch(self, *args, **how)

ModelTrainer.train_batch = dies_in_its_turn
ludus.Trainer(Config(**json.loads(sys.argv[1])), ROWS).train(Talker)
"""


def speak(asked: Call) -> str:
    """Some vowels, which the agent counts; how many depends on prompt and seed."""
    return "a" * (1 + zlib.crc32(f"{asked.prompt_ids}/{asked.sampling.seed}".encode()) % 5)


@pytest.fixture
def stand_in(tiny_model_folder: Path) -> StandIn:
    return StandIn(speak, Tokenizer.load(tiny_model_folder), context=512)


@pytest.fixture
def url(stand_in: StandIn) -> Iterator[str]:
    with serving(stand_in) as url:
        yield url


def shared_config(model: Path, root: Path, url: str, /, **changes: Any) -> Config:
    return make_config(model, root, engine={"kind": "vllm", "placement": "shared", "urls": [url]}, **changes)


@pytest.mark.parametrize("lora", [None, {"rank": 2}], ids=["whole", "lora"])
def test_each_step_is_a_cycle(
    lora: dict[str, int] | None,
    tiny_model_folder: Path,
    tmp_path: Path,
    stand_in: StandIn,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Paused, asleep, trained, weights awake, handed over, pages awake, resumed; whenever the trainer takes memory for
    its state, the server holds none, and every token is accounted for."""
    sizes: list[int] = []
    for name in ("train_batch", "offload"):
        of_trainer = getattr(ModelTrainer, name)

        def noted(self: ModelTrainer, *args: Any, of_trainer: Any = of_trainer, **how: Any) -> Any:
            sizes.append(stand_in.card_size)
            return of_trainer(self, *args, **how)

        monkeypatch.setattr(ModelTrainer, name, noted)
    model = {"path": str(tiny_model_folder), "dtype": "float32", **({"lora": lora} if lora else {})}
    watcher = Steps()
    config = shared_config(tiny_model_folder, tmp_path, url, model=model, total_train_steps=2)
    summary = ludus.Trainer(config, ROWS).train(Talker, observer=watcher)
    assert summary.steps == 2 and summary.ledger.unbalanced == 0
    init, load = "/init_weight_transfer_engine", "/v1/load_lora_adapter"
    update, first = (ADAPTED, [*ADAPTED, load]) if lora else (UPDATE, UPDATE)
    begun = [*([] if lora else [init]), *FALLS_ASLEEP, WEIGHTS_WAKE, *first, PAGES_WAKE, "/resume"]
    trainer_opens = [*FALLS_ASLEEP, *WAKES]
    step = [*FALLS_ASLEEP, WEIGHTS_WAKE, *update, PAGES_WAKE, "/resume"]
    assert stand_in.order == [*begun, *trainer_opens, *step, *step]
    assert sizes == [0, 0, 0] and stand_in.card_size == sum(SIZES.values())
    for _, metrics in watcher.steps:
        sampled, accounted = ledger_of(metrics)
        assert sampled == accounted == metrics["ledger/trained"] + metrics.get("ledger/masked_zero_advantage", 0)
        assert {"time/sleep_s", "time/wake_s"} <= metrics.keys()


@pytest.mark.timeout(120)  # a second process loads torch
def test_a_run_that_is_killed_while_its_server_sleeps_goes_on(
    tiny_model_folder: Path, tmp_path: Path, stand_in: StandIn, url: str
) -> None:
    """The trainer dies in its turn: who resumes wakes the server, gives it the weights, and learns the step again."""
    given = shared_config(tiny_model_folder, tmp_path, url, checkpoint={"every_steps": 1})
    asked = json.dumps(given.model_dump(mode="json", exclude_unset=True))
    killed = subprocess.run([sys.executable, "-c", KILLED, asked], check=False, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    assert stand_in.card_size == 0
    summary = ludus.Trainer(given, ROWS).train(Talker, resume=True)
    assert summary.steps == 3 and summary.ledger.unbalanced == 0
    assert stand_in.card_size == sum(SIZES.values())


@pytest.mark.parametrize("path", ["/sleep", "/wake_up"])
def test_a_server_that_does_not_give_way_ends_the_run(
    path: str,
    tiny_model_folder: Path,
    tmp_path: Path,
    stand_in: StandIn,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is trained beside a server that is awake, nobody waits for one that stays asleep, and the error says what
    to set."""
    sizes: list[int] = []
    train_batch = ModelTrainer.train_batch

    def noted(self: ModelTrainer, *args: Any, **how: Any) -> Any:
        sizes.append(stand_in.card_size)
        return train_batch(self, *args, **how)

    class Refusing(Steps):
        def on_step(self, step: int, metrics: Any) -> None:
            super().on_step(step, metrics)
            stand_in.refuses = {path}

    monkeypatch.setattr(ModelTrainer, "train_batch", noted)
    config = shared_config(tiny_model_folder, tmp_path, url, total_train_steps=4)
    with pytest.raises(BackendError, match=f"{path} with 500.*engine.placement=split"):
        ludus.Trainer(config, ROWS).train(Talker, observer=Refusing())
    assert set(sizes) == {0} and len(sizes) == (1 if path == "/sleep" else 2)
