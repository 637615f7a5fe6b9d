"""The calculator recipe: three agents, one conversation, one reward; and a tool that no text can misuse."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.keys import SessionKeys
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.gateway.server import GatewayServer
from ludus.import_strings import import_object
from ludus.text.chat import ChatText
from tests.gateway.clients import async_client

RECIPE = Path(__file__).parent.parent.parent / "recipes" / "calculator"
CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "12 * (3 + 4)"}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "12 times 7"}}\n</tool_call>'
PROBLEM = {"question": "What is 12 * (3 + 4)?", "answer": 84}


@contextmanager
def on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, RECIPE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with on_path(RECIPE):
        spec.loader.exec_module(module)
    return module


def play(tokenizer_folder: Path, name: str, replies: list[str]) -> tuple[object, list[tuple[int, ...]]]:
    """What the agent returns, and the tokens of every turn with its prompt."""
    text = ChatText.load(tokenizer_folder, chat_template="chatml-tools")
    engine = ScriptedEngine(replies, text.tokenizer)
    session = Recorder(engine, text).open(SessionSpec("calculator"))
    with GatewayServer(SessionKeys()) as server:
        secret = server.keys.add(session)
        kind = import_object(f"{RECIPE / 'agent.py'}:{name}")
        kind.run.__globals__["MAX_TOKENS"] = 400  # the small tokenizer makes several tokens of a word
        result = asyncio.run(run(server, kind(), secret))
    record = session.snapshot()
    assert all(turn.fork is None for turn in record.turns)
    return result, [record.path_ids(turn.node) for turn in record.turns]


async def run(server: GatewayServer, agent: Any, secret: str) -> object:
    async with async_client(server) as client:
        return await agent.run(PROBLEM, base_url=server.url_for(secret), api_key=secret, http_client=client)


@pytest.mark.parametrize(
    ("replies", "reward", "metrics"),
    [
        ([CALL, "84"], 1.0, {"success": 1.0, "used_tool": 1.0}),
        ([WRONG, "So it is 83."], 0.0, {"success": 0.0, "used_tool": 0.0}),
        ([WRONG, f"Again.\n{CALL}", "85"], 0.1, {"success": 0.0, "used_tool": 1.0}),
        (["84"], 1.0, {"success": 1.0, "used_tool": 0.0}),
        ([CALL] * 4, 0.1, {"success": 0.0, "used_tool": 1.0}),
    ],
)
def test_every_protocol_gives_the_same_tokens_and_the_same_reward(
    tokenizer_folder: Path, replies: list[str], reward: float, metrics: dict[str, float]
) -> None:
    """The agent of each SDK sends one conversation: the model sees the same, and learns from the same number."""
    played = [play(tokenizer_folder, name, replies) for name in ("ChatAgent", "ResponsesAgent", "MessagesAgent")]
    assert played[0] == played[1] == played[2]
    assert played[0][0] == (reward, metrics)
    assert len(played[0][1]) == len(replies)


@pytest.mark.parametrize(
    "expression", ["2 ** 9", "__import__('os')", "1 if 1 else 2", "1.5 + 1", "(1", "", "9" * 61, "-" * 60]
)
def test_the_tool_reads_arithmetic_and_nothing_else(expression: str) -> None:
    """Whatever a model writes becomes a number or an answer that says what is read."""
    assert load("calculator").call({"expression": expression}).startswith("error: ")


def test_the_tool_needs_an_expression() -> None:
    """A call without its argument is told so."""
    calculator = load("calculator")
    assert calculator.call({}) == calculator.call(None) == "error: the argument 'expression' must be a string"
    assert calculator.call({"expression": "-3 * (4 - 10)"}) == "18"


def test_held_out_problems_are_not_trained_on() -> None:
    """No question is in both parts, and every expression has the answer that the tool finds."""
    problems, calculator = load("problems"), load("calculator")
    held_out, training = problems.held_out(), problems.training()
    assert not {each["question"] for each in held_out} & {each["question"] for each in training}
    assert all(calculator.calculate(each["expression"]) == each["answer"] for each in (*held_out, *training))
