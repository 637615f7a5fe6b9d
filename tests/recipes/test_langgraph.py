"""The LangGraph recipe: terms of two steps are walked through with the tool, and each step is worth something."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ludus
from ludus.compat.config import Config
from ludus.compat.verl.settings import RewardSettings
from ludus.import_strings import import_object
from ludus.text.chat import ChatText
from tests.compat.verl.conftest import Player, ReplayResult, configured

RECIPE = Path(__file__).parent.parent.parent / "recipes" / "langgraph"


@pytest.fixture
def play(tokenizer_folder: Path) -> Callable[..., ReplayResult]:
    return Player(ChatText.load(tokenizer_folder, chat_template="chatml-tools"))


@pytest.fixture
def problems() -> Any:
    return import_object(f"{RECIPE / 'problems.py'}:row").__globals__


def call(a: int, b: int) -> str:
    return f'<tool_call>\n{{"name": "calculate", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>'


def plan() -> Config:
    config = ludus.load_config(RECIPE / "run.yaml")
    reward = RewardSettings(custom_reward_function={"path": str(RECIPE / "reward.py")})
    return configured(multi_turn=config.rollout.multi_turn, reward=reward)


@pytest.mark.parametrize(
    ("replies", "reward", "metrics"),
    [
        ([call(5, 3), call(9, 4), "19"], 1.0, {"success": 1.0, "steps_found": 1.0}),
        ([call(5, 3), call(9, 4), "It is 20."], 0.3, {"success": 0.0, "steps_found": 1.0}),
        ([call(5, 3), "9"], 0.15, {"success": 0.0, "steps_found": 0.5}),
        ([call(3, 5), call(9, 4), call(9, 4), call(9, 4)], 0.15, {"success": 0.0, "steps_found": 0.5}),
        (["19"], 1.0, {"success": 1.0, "steps_found": 0.0}),
    ],
)
def test_a_term_of_two_steps(
    play: Any, problems: Any, replies: list[str], reward: float, metrics: dict[str, float]
) -> None:
    """5 @ 3 @ 4 is 9 @ 4, which is 19."""
    row = problems["row"](0, "Compute 5 @ 3 @ 4.", [(5, 3), (9, 4)])
    played = play(f"{RECIPE / 'loop.py'}:OperatorLoop", row, replies, plan=plan())
    assert played.scored.rewards == {played.record.turns[-1].id: pytest.approx(reward)}
    assert {name: played.scored.metrics[name] for name in metrics} == metrics
    assert all(turn.fork is None for turn in played.record.turns)


def test_nothing_that_is_held_out_is_trained_on(problems: Any) -> None:
    """No term stands in both; every answer is what the tool gives."""
    held_out, training = problems["held_out"](), problems["training"]()
    questions = {row["prompt"][1]["content"] for row in training}
    assert (len(held_out), len(training)) == (120, 480)
    assert all(row["prompt"][1]["content"] not in questions for row in held_out)
    for row in (*held_out, *training):
        *_, (a, b) = row["extra_info"]["steps"]
        assert row["reward_model"]["ground_truth"] == str(3 * a - 2 * b)
