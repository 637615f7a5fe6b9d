"""The counting game of recipes/queue: its rows, its environment, its agent on written answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ludus.api.agent import choose_agent
from ludus.api.experiment import open_experiment
from ludus.compat.config import load_config
from ludus.import_strings import import_object
from tests.compat.realhf.conftest import play, text

__all__ = ["play", "text"]

RECIPE = Path(__file__).parents[2] / "recipes" / "queue"


@pytest.fixture
def config(monkeypatch, tiny_models):
    pytest.importorskip("torch")
    monkeypatch.chdir(RECIPE.parents[1])
    return load_config(RECIPE / "run.yaml", [f"model.path={tiny_models('llama')}", "num_turns=2"])


def test_rows_are_held_out():
    """No game stands on both sides, and every game begins with numbers that there are."""
    held_out, training = (import_object(f"{RECIPE}/games.py:{name}")() for name in ("held_out", "training"))
    assert (len(held_out), len(training)) == (36, 144)
    assert not {row["query_id"] for row in held_out} & {row["query_id"] for row in training}
    assert all(int(row["messages"][1]["content"]) >= 1 for row in [*held_out, *training])


def test_the_environment_goes_on(config):
    """Right is 1, another number a tenth, no number nothing; the count goes on in any case."""

    async def count(*answers):
        env = open_experiment(config)
        game = choose_agent(config)._env.for_episode({"start": 5, "step": 2})
        assert env.num_turns == 2
        seen = [await game.reset()]
        return seen[0][0], [(await game.step(answer))[:2] for answer in answers]

    assert asyncio.run(count("7", "It is 12", "11 or 15", "19")) == (
        "5",
        [("9", 1.0), ("13", 0.1), ("17", 0.0), ("21", 1.0)],
    )


def test_the_agent_counts(config, play):
    """Each number is paid for itself; success is that all were right."""
    row = import_object(f"{RECIPE}/games.py:game")(5, 2)
    agent_adapter = choose_agent(config)
    played = play(agent_adapter._agent, ["7", "10"], row, {"env": agent_adapter._env})
    assert list(played.episode.rewards.values()) == [1.0, pytest.approx(0.1)]
    assert played.episode.metrics == {"success": 0.0, "right_numbers": 1.0}
    shown = played.text.tokenizer.decode(played.engine.calls[1].prompt_ids)
    assert shown.endswith(
        "user\n5<|im_end|>\n<|im_start|>assistant\n7<|im_end|>\n<|im_start|>user\n9<|im_end|>\n<|im_start|>assistant\n"
    )
