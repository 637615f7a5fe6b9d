"""The tools that come ready: Python in the sandbox, and verl's tool for GSM8K."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ludus.agents.tools.episode_tools import EpisodeTools
from ludus.agents.tools.python import PythonTool
from ludus.agents.tools.tool_set import ToolSet
from ludus.compat.verl.gsm8k_tool import Gsm8kTool
from ludus.errors import ConfigError
from ludus.types import ToolCall

pytestmark = pytest.mark.anyio


async def say(episode_tools: EpisodeTools, name: str, /, **arguments: Any) -> str:
    return (await episode_tools.call(ToolCall("1", name, json.dumps(arguments)))).text


@pytest.mark.parametrize(
    ("code", "text", "limit_s"),
    [
        ("print(1)\n2 + 2", "1\n4", 60),
        ("x = 1", "(no output)", 60),
        ("import sys; sys.exit(3)", "(exit status 3)", 60),
        ("while True: pass", "(stopped after 0.5 s)", 0.5),
    ],
)
@pytest.mark.usefixtures("sandbox")
async def test_python_reads_as_text(code: str, text: str, limit_s: float) -> None:
    """What is printed, the value of a last expression, and how it ended where that says more."""
    tool_set = ToolSet.load(tools=[PythonTool({"default_timeout": limit_s})])
    await tool_set.setup()
    async with tool_set.open() as episode_tools:
        assert await say(episode_tools, "code_interpreter", code=code) == text


@pytest.mark.usefixtures("sandbox")
async def test_an_error_of_the_code_is_what_the_model_reads() -> None:
    """It is no error of the tool; whether code worked is a metric."""
    tool_set = ToolSet.load(tools=[PythonTool()])
    await tool_set.setup()
    async with tool_set.open() as episode_tools:
        text = await say(episode_tools, "code_interpreter", code="print('before')\n1 / 0")
        await say(episode_tools, "code_interpreter", code="1")
        assert "must be a text, got 3" in await say(episode_tools, "code_interpreter", code=3)
    assert text.startswith("before\nTraceback") and text.endswith("ZeroDivisionError: division by zero")
    assert (episode_tools.metrics["tools/code_interpreter/ok"], episode_tools.metrics["tools/num_errors"]) == (0.5, 1)


def test_settings_of_the_python_tool_are_checked() -> None:
    """A key that is none is named."""
    with pytest.raises(ConfigError, match="unknown key 'timeout'; did you mean 'default_timeout'"):
        PythonTool({"timeout": 3})


async def test_the_gsm8k_tool_rewards_a_right_answer_once() -> None:
    """Asking again without doing better costs, and the trajectory earns what the best answer is worth."""
    tool_set = ToolSet.load(tools=[Gsm8kTool()])
    await tool_set.setup()
    given = {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "1200"}}}
    async with tool_set.open(given) as episode_tools:
        texts = [
            await say(episode_tools, "calc_gsm8k_reward", answer=answer) for answer in ("7", "$1,200.", "1200", "many")
        ]
    assert texts[:2] == ["Current parsed answer='7' reward=0.0", "Current parsed answer='$1,200.' reward=1.0"]
    assert (episode_tools.call_rewards, episode_tools.rewards) == (
        (-0.05, 0.0, -0.05, -0.05),
        {"calc_gsm8k_reward": 1.0},
    )


async def test_the_gsm8k_tool_needs_a_solution() -> None:
    """A row without one is told so."""
    tool_set = ToolSet.load(tools=[Gsm8kTool()])
    await tool_set.setup()
    async with tool_set.open() as episode_tools:
        assert "needs `ground_truth` in the row's tools_kwargs" in await say(
            episode_tools, "calc_gsm8k_reward", answer="1"
        )
