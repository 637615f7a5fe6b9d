"""Functions as tools, run: awaited, in processes of their own, in threads."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ludus.agents.tools.answer import ToolError, ToolLimits
from ludus.agents.tools.base import ToolResponse
from ludus.agents.tools.function import function_tool
from ludus.agents.tools.tool_set import ToolSet
from ludus.errors import UserError
from ludus.types import ToolCall

pytestmark = pytest.mark.anyio


async def answers(*tools: Any, calls: list[tuple[str, dict[str, Any]]], timeout_s: float = 30.0) -> list[str]:
    """The texts that calls of these tools give, one after another."""
    tool_set = ToolSet.load(tools=tools, limits=ToolLimits(timeout_s=timeout_s))
    await tool_set.setup()
    try:
        async with tool_set.open() as episode_tools:
            return [(await episode_tools.call(ToolCall("1", name, json.dumps(given)))).text for name, given in calls]
    finally:
        await tool_set.close()


async def test_a_blocking_function_runs_in_another_process() -> None:
    """Its closure is pickled with it."""
    here = os.getpid()

    @function_tool
    def where(word: str) -> dict[str, Any]:
        return {"word": word, "elsewhere": os.getpid() != here}

    assert await answers(where, calls=[("where", {"word": "é"})]) == ['{"word":"é","elsewhere":true}']


async def test_a_function_that_hangs_is_killed_and_the_next_call_works() -> None:
    """A tight loop holds up nobody."""

    @function_tool
    def spin(forever: bool) -> str:
        while forever:
            pass
        return "done"

    begun = time.monotonic()
    calls = [("spin", {"forever": False}), ("spin", {"forever": True}), ("spin", {"forever": False})]
    texts = await answers(spin, calls=calls, timeout_s=1.0)
    assert texts == ["done", "Error: the tool 'spin' did not answer within 1.0 s", "done"]
    assert time.monotonic() - begun < 20


async def test_a_function_that_ends_its_process_is_an_error_of_that_call() -> None:
    """Ludus lives on, and so does the tool."""

    @function_tool
    def crash(now: bool) -> str:
        if now:
            os._exit(7)
        return "alive"

    first, second = await answers(crash, calls=[("crash", {"now": True}), ("crash", {"now": False})])
    assert "the process of the call ended" in first and "7" in first
    assert second == "alive"


async def test_errors_come_back_from_processes() -> None:
    """A ToolError as its words alone, any other with its type."""

    @function_tool
    def picky(how: str) -> str:
        raise ToolError("not today") if how == "kind" else KeyError("x")

    kind, rude = await answers(picky, calls=[("picky", {"how": "kind"}), ("picky", {"how": "rude"})])
    assert (kind, rude) == ("Error: not today", "Error: the tool 'picky' failed: KeyError: 'x'")


async def test_a_function_in_a_thread_shares_the_process() -> None:
    """What it holds is never copied, and what it changes is seen; the event loop goes on meanwhile."""
    lock, seen = threading.Lock(), []  # a lock cannot be pickled

    @function_tool(runs_in="thread")
    def note(word: str) -> int:
        with lock:
            seen.append((word, threading.current_thread().daemon))
        return len(seen)

    assert await answers(note, calls=[("note", {"word": "a"}), ("note", {"word": "b"})]) == ["1", "2"]
    assert seen == [("a", True), ("b", True)]


async def test_a_thread_that_never_returns_is_given_up() -> None:
    """It holds up neither its trajectory nor the end of the program."""
    stop = threading.Event()

    @function_tool(runs_in="thread")
    def wait() -> str:
        stop.wait()
        return ""

    assert "did not answer within" in (await answers(wait, calls=[("wait", {})], timeout_s=0.05))[0]
    stop.set()
    await asyncio.sleep(0)


async def test_a_function_that_cannot_travel_says_what_to_do() -> None:
    """At the start of the run, not in its middle."""
    lock = threading.Lock()

    @function_tool
    def locked() -> str:
        with lock:
            return ""

    with pytest.raises(UserError, match=r"the tool 'locked'.*cannot be sent.*runs_in='thread'"):
        await ToolSet.load(tools=[locked]).setup()


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        (3, "3"),
        ([1, "é"], '[1,"é"]'),
        ({"a": Path("x")}, '{"a":"x"}'),
        (ToolResponse(text="said"), "said"),
        (("said", 0.5), "said"),
        ((ToolResponse(text="said"), 0.5, {"n": 1}), "said"),
        (ToolResponse(image=["pixels"]), "Error: the tool answered with an image, and this model reads text alone"),
        (("said", float("inf")), "Error: the reward of a tool must be a finite number, got inf"),
        (("said", "good"), "Error: the reward of a tool must be a finite number, got 'good'"),
        (("said", 1, 2), "Error: the metrics of a tool must be a mapping, got 2"),
        (object(), "Error: the tool returned a object; allowed: a text"),
    ],
)
async def test_what_a_function_may_return(returned: Any, text: str) -> None:
    """Text, JSON, a response, or a tuple with a reward and metrics; anything else is named."""

    async def tool() -> Any:
        return returned

    assert (await answers(tool, calls=[("tool", {})]))[0].startswith(text)


def test_a_file_of_functions_is_read_in_its_order(tmp_path: Path) -> None:
    """Functions without the mark are no tools."""
    path = tmp_path / "my_function_tools.py"
    path.write_text(
        "from ludus.agents.tools.function import function_tool\n\n"
        "def helper(x): return x\n\n"
        "@function_tool\ndef second(x: int) -> int:\n    return helper(x) * 2\n\n"
        "@function_tool\ndef first(x: int) -> int:\n    return x\n"
    )

    async def main() -> tuple[list[str], str]:
        tool_set = ToolSet.load(function_tool_path=path)
        await tool_set.setup()
        async with tool_set.open() as episode_tools:
            text = (await episode_tools.call(ToolCall("1", "second", '{"x": 21}'))).text
        names = [spec.name for spec in tool_set.specs]
        await tool_set.close()
        return names, text

    assert asyncio.run(main()) == (["second", "first"], "42")


def test_a_file_without_tools_is_refused(tmp_path: Path) -> None:
    """A path that cannot act is an error."""
    (tmp_path / "empty_tools.py").write_text("x = 1\n")
    with pytest.raises(UserError, match="marks no function with @function_tool"):
        ToolSet.load(function_tool_path=tmp_path / "empty_tools.py")
    with pytest.raises(UserError, match="there is no file"):
        ToolSet.load(function_tool_path=tmp_path / "missing.py")
