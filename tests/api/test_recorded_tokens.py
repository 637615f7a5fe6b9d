from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ludus.api.trainer import Trainer
from ludus.config import Config
from ludus.engines.lease import ComputeLease
from ludus.models.load import load_model
from ludus.models.settings import ModelSettings
from ludus.runs.store import RunStore
from ludus.runs.tokens import recorded_steps
from ludus.runs.watch.app import api_routes
from ludus.runs.watch.folder import RunsFolder
from ludus.trainer.settings import TrainerSettings
from ludus.trainer.step import ModelTrainer

ROWS = [{"question": f"What do you know about {number}?"} for number in range(4)]


class LettersAgent:
    """Asks twice; what pays is a reply with many different letters."""

    async def run(self, data: dict[str, str], *, base_url: str, http_client: Any) -> dict[str, float]:
        messages = [{"role": "user", "content": data["question"]}]
        rewards = {}
        for follow_up in ("And why?", ""):
            answer = (await http_client.post(base_url + "/chat/completions", json={"messages": messages})).json()
            text = answer["choices"][0]["message"]["content"] or ""
            rewards[answer["id"]] = len(set(text)) / 10.0
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": follow_up}]
        return rewards


class LosingAgent(LettersAgent):
    """It says so, for a curriculum."""

    async def run(self, data: dict[str, str], *, base_url: str, http_client: Any) -> Any:
        return await super().run(data, base_url=base_url, http_client=http_client), {"success": 0.0}


def config_of(model: Path, root: Path, **more: Any) -> Config:
    values: dict[str, Any] = {
        "name": "run",
        "run_root": str(root),
        "model": {"path": str(model), "dtype": "float32"},
        "engine": {"kv_bytes": 2**22},
        "gconfig": {"n_samples": 2, "max_new_tokens": 6},
        "train_dataset": {"batch_size": 2},
        "trainer": {"optimizer": {"lr": 1e-3}},
        "total_train_steps": 2,
        **more,
    }
    return Config(**values)


def test_a_run_keeps_what_the_loss_used_of_every_token(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Each step's tokens add up to its loss and its ledger; what is kept, and shown, of ten of them is what a trainer
    with the weights of the beginning computes again."""
    Trainer(config_of(tiny_model_folder, tmp_path), ROWS).train(LettersAgent)
    rng = random.Random(0)
    with RunStore.look(tmp_path / "run") as store:
        metrics, credit = dict(store.metrics()), store.credit()
        assert recorded_steps(store.folder) == [1, 2]
        for step in (1, 2):
            tokens = store.tokens(step)
            assert tokens is not None and tokens.step == step
            assert tokens.loss == pytest.approx(metrics[step]["train/loss"], abs=1e-6)
            assert tokens.num_trained == metrics[step]["ledger/trained"]
        first = store.tokens(1)
        assert first is not None
        turns = {turn.id: (each, turn) for each in store.episodes() for turn in each.session.turns}
    trainer = ModelTrainer(
        load_model(ModelSettings(path=str(tiny_model_folder), dtype="float32")), TrainerSettings(), lease=ComputeLease()
    )
    folder = RunsFolder(tmp_path / "run")
    for turn_id, _ in rng.choices(first.turns, k=10):
        episode, turn = turns[turn_id]
        place, token = rng.choice(list(first.of_turn(turn_id).items()))
        path = episode.session.path_ids(turn.node)
        (logprobs,) = trainer.score([path])
        expected = logprobs[len(path) - len(turn.sampled.token_ids) + place - 1]
        factor = min(math.exp(expected - turn.sampled.logprobs[place]), 2.0)
        assert token["trained_logprob"] == pytest.approx(expected, abs=1e-4)
        assert token["advantage"] == pytest.approx(credit[turn_id])
        assert token["loss"] == pytest.approx(-token["weight"] * token["advantage"] * factor, rel=1e-3)
        shown = api_routes(folder, f"runs/run/episodes/{episode.id}/turns/{turn_id}/tokens", {})["tokens"]
        (on_page,) = [each for each in shown if each["i"] == len(path) - len(turn.sampled.token_ids) + place]
        assert on_page["id"] == turn.sampled.token_ids[place] and on_page["logprob"] == turn.sampled.logprobs[place]
        assert {name: on_page[name] for name in token} == token
    folder.close()


def test_the_guessing_games_recipe_keeps_what_both_minibatches_used(tiny_model_folder: Path, tmp_path: Path) -> None:
    """With its algorithm, curriculum, temperature and falling rate: what the page shows of all tokens adds up to each
    step's loss; the first minibatch was computed with the weights that sampled, the second with those after it."""
    recipe = yaml.safe_load(Path("recipes/guess/run.yaml").read_text())
    own = {name: recipe[name] for name in ("algorithm", "rollout")}
    dataset = {"batch_size": 2, "curriculum": recipe["train_dataset"]["curriculum"]}
    generation = {**recipe["gconfig"], "max_new_tokens": 6}
    optimizer = {**recipe["trainer"]["optimizer"], "lr": 1e-2}
    more: dict[str, Any] = {"train_dataset": dataset, "gconfig": generation, "trainer": {"optimizer": optimizer}}
    assert own["algorithm"]["minibatches"] == 2
    Trainer(config_of(tiny_model_folder, tmp_path, **own, **more, total_train_steps=3), ROWS).train(LosingAgent)
    with RunStore.look(tmp_path / "run") as store:
        metrics = dict(store.metrics())
        first = store.tokens(1)
        turns = {turn.id: (each, turn) for each in store.episodes() for turn in each.session.turns}
    folder = RunsFolder(tmp_path / "run")
    try:
        folder.run("run").wait(num_read=len(turns))
        for step in (1, 2, 3):
            losses = list(_losses_on_the_page(folder, step))
            assert len(losses) == metrics[step]["ledger/trained"] > 0
            assert math.fsum(losses) == pytest.approx(metrics[step]["train/loss"], abs=1e-6)
    finally:
        folder.close()
    assert first is not None
    is_first: dict[str, set[bool]] = {}
    for turn_id, _ in first.turns:
        episode, turn = turns[turn_id]
        for place, token in first.of_turn(turn_id).items():
            ratio = math.exp(token["trained_logprob"] - turn.sampled.logprobs[place])
            assert token["ratio"] == pytest.approx(ratio, rel=1e-4)
            is_first.setdefault(episode.group_id, set()).add(ratio == pytest.approx(1.0, abs=1e-3))
    one, other = is_first.values()
    assert {True} in (one, other) and False in one | other


def _losses_on_the_page(folder: RunsFolder, step: int) -> Iterator[float]:
    """Of every token that the page shows of the step's episodes."""

    def get(path: str, **given: str) -> Any:
        return api_routes(folder, f"runs/run/{path}", given)

    for row in get("episodes", step=str(step), eval="0", limit="1000")["episodes"]:
        for turn in get(f"episodes/{row['id']}")["turns"]:
            for token in get(f"episodes/{row['id']}/turns/{turn['id']}/tokens")["tokens"]:
                if token["kind"] == "sampled" and token["loss"] is not None:
                    yield token["loss"]


def test_a_run_that_is_told_so_keeps_nothing_of_its_tokens(tiny_model_folder: Path, tmp_path: Path) -> None:
    more = {"trainer": {"optimizer": {"lr": 1e-3}, "record_tokens": False}, "total_train_steps": 1}
    Trainer(config_of(tiny_model_folder, tmp_path, **more), ROWS).train(LettersAgent)
    assert recorded_steps(tmp_path / "run") == []
