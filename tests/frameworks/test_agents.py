"""Agents of frameworks that install together, each as its quick start writes it: exact records, and true docs."""

from __future__ import annotations

import asyncio
import gc
import importlib
import re
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.calculator import ADDED, ANSWER, BOTH_CALLS, CODE, FINAL, QUESTION, REPLIES, THEN
from tests.frameworks.checker import check_path, check_record

HERE = Path(__file__).parent
DOCS = HERE.parent.parent / "docs" / "agents-frameworks.md"


@pytest.fixture(autouse=True)
def own_loop() -> Iterator[None]:
    """Blocking quick starts take the thread's event loop, make one where there is none, and never close it."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


def run(name: str, url: str, key: str, *options: str) -> str:
    """The agent's answer. Quick starts leave their clients open; those are gone before a later test would notice."""
    agent = importlib.import_module(f"tests.frameworks.{name}.agent")
    gc.freeze()  # what was there before is not searched: the packages are large
    try:
        answer = str(agent.run(url, key, *options))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    finally:
        gc.unfreeze()
    return answer


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("openai_chat", ()),
        ("openai_responses", ()),
        ("openai_agents", ("chat",)),
        ("openai_agents", ("responses",)),
        ("openai_agents", ("responses", "streamed")),
        ("langchain", ()),
        ("langgraph", ()),
        ("pydantic_ai", ()),
    ],
)
def test_agent_over_openais_protocols(serve_session: Any, tools_text: Any, name: str, options: tuple[str, ...]) -> None:
    """Every turn is recorded, on one path of tokens, though agents send calls back as they like."""
    served = serve_session(tools_text, REPLIES)
    assert run(name, served.openai_url, "DUMMY", *options) == ANSWER
    check_path(served, REPLIES, ADDED)


@pytest.mark.parametrize("path", ["", "/v1"])
def test_agent_over_messages(serve_session: Any, tools_text: Any, path: str) -> None:
    """The same with Anthropic's SDK, which adds `/v1` to its base URL, also to one that ends in it."""
    served = serve_session(tools_text, REPLIES)
    assert run("anthropic_messages", served.url + path, "DUMMY") == ANSWER
    check_path(served, REPLIES, ADDED)


def test_agent_that_retells_its_history(serve_session: Any, tools_text: Any) -> None:
    """smolagents turns calls and results into prose: every turn starts a path of its own, and none is lost."""
    served = serve_session(tools_text, (BOTH_CALLS, THEN, FINAL))
    assert run("smolagents", served.openai_url, "DUMMY") == ANSWER
    first, second, third = check_record(served).turns
    assert [turn.fork for turn in (first, second, third)] == [None, "edit", "edit"]
    assert (second.follows, third.follows) == (first.id, second.id)


def test_agent_that_writes_code(serve_session: Any, tools_text: Any) -> None:
    """smolagents' CodeAgent is stopped by a string that it puts back: its turns are one path."""
    served = serve_session(tools_text, CODE)
    assert run("smolagents", served.openai_url, "DUMMY", "code") == ANSWER
    first, second = check_record(served).turns
    assert (second.fork, second.prefix) == (None, first.id)


def test_session_key_instead_of_session_url(serve_session: Any, tools_text: Any) -> None:
    """With the session's key, the gateway's own URL does."""
    served = serve_session(tools_text, REPLIES)
    assert run("openai_chat", served.url.partition("/s/")[0] + "/v1", served.key) == ANSWER
    check_path(served, REPLIES, ADDED)


def test_agents_ask_the_same() -> None:
    """All agents are given the question that the written answers answer."""
    agents = sorted(HERE.glob("*/agent.py"))
    assert len(agents) == 10
    assert all(QUESTION in agent.read_text() for agent in agents)


def test_docs_show_the_agents_that_are_tested() -> None:
    """Every code block of the docs stands in the agents that are named before it."""
    blocks = re.findall(r"\n`tests/(.*?)\n```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    shown = [(name, block) for named, block in blocks for name in re.findall(r"frameworks/(\w+)/agent\.py", named)]
    assert {name for name, _ in shown} == {agent.parent.name for agent in HERE.glob("*/agent.py")}
    for name, block in shown:
        agent = (HERE / name / "agent.py").read_text()
        assert textwrap.indent(block, " " * 4) in agent or textwrap.indent(block, " " * 8) in agent, name
