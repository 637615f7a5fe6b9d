"""The agents that AReaL ships, by the names that its configurations have for them, each on its SDK."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import ludus
from ludus.compat.areal.utils.dynamic_import import import_from_string
from ludus.compat.areal.workflow.openai.math_agent import math_reward_fn, sqrt
from ludus.errors import UserError

ROW = {"messages": [{"role": "user", "content": "2+2?"}], "answer": "2+2=4\n#### 4"}
OPTIONS = {"temperature": 1.0, "top_p": 1.0, "max_completion_tokens": 4}


def play(agent: str, model: Path, kwargs: dict[str, Any]) -> Any:
    config = ludus.Config(
        model={"path": str(model), "dtype": "float32"},
        engine={"kv_bytes": 2**22},
        gconfig={"n_samples": 1, "max_new_tokens": 4},
        rollout={"retries": 0},
    )
    (episode,) = ludus.play(import_from_string(agent), [ROW], config=config, workflow_kwargs=kwargs)
    return episode


@pytest.mark.parametrize(
    ("agent", "kwargs", "num_turns"),
    [
        ("areal.workflow.openai.math_agent.MathAgent", {**OPTIONS, "max_tokens": 64, "max_turns": 3}, 1),
        ("areal.workflow.openai.math_agent.MultiTurnMathAgent", {**OPTIONS, "max_tokens": 64, "max_turns": 2}, 2),
        ("areal.workflow.anthropic.math_agent.MathAgent", {**OPTIONS, "max_tokens": 4, "max_turns": 3}, 1),
        ("areal.workflow.langchain.math_agent.MathAgent", {**OPTIONS, "max_tokens": 64, "max_turns": 3}, 1),
    ],
)
def test_agents_take_what_areals_script_gives_them(
    agent: str, kwargs: dict[str, Any], num_turns: int, tiny_model_folder: Path
) -> None:
    """One dictionary for all of them: each sends what its protocol has."""
    episode = play(agent, tiny_model_folder, kwargs)
    assert (episode.outcome.kind, episode.reward) == ("ok", 0.0), episode.outcome.reason
    assert [len(turn.sampled.token_ids) for turn in episode.session.turns] == [4] * num_turns


def test_a_builder_of_agents() -> None:
    """It hands over to four others; all ask for the policy, and not for the model that the SDK would choose."""
    agent = import_from_string("areal.workflow.openai_agent.math_agent.build_math_agent")()
    assert [each.tool_name for each in agent.handoffs] == [
        "analyze_problem",
        "solve_problem",
        "refine_solution",
        "verify_solution",
    ]
    others = [asyncio.run(each.on_invoke_handoff(None, "")) for each in agent.handoffs]
    assert {each.model for each in (agent, *others)} == {"default"}


def test_answers_are_compared_as_mathematics() -> None:
    """By math-verify; an answer without text is wrong."""
    assert math_reward_fn(r"It is \boxed{4}.", ROW["answer"]) == 1.0  # type: ignore[arg-type]
    assert math_reward_fn(None, "4") == 0.0 and sqrt(9.0) == 3.0


def test_an_sdk_that_is_missing_is_named() -> None:
    """With what to install."""
    agent = import_from_string("areal.workflow.anthropic.claude_math_agent.MathToolAgent")()
    with pytest.raises(UserError, match="pip install claude-agent-sdk"):
        asyncio.run(agent.run(ROW))
