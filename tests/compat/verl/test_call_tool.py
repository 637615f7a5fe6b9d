"""verl's `_call_tool` by itself: on a stand-in, with tools of other classes, and for trajectories of a user's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from ludus.agents.tools.base import ToolResponse
from ludus.compat.config import Config
from ludus.compat.verl.adapter import from_loop
from ludus.compat.verl.agent_data import AgentData, AgentState
from ludus.compat.verl.parser import FunctionCall, ToolParser
from ludus.compat.verl.tool_loop import ToolAgentLoop
from ludus.errors import UserError
from tests.compat.verl.conftest import ReplayResult
from tests.compat.verl.test_tool_loop import ROW, observations, plan, says

__all__ = ["plan"]  # a fixture
Play = Callable[..., ReplayResult]
BARE = {"prompt": ROW["prompt"]}


class Echo:
    """A tool of no class of ours, made for verl's loops alone."""

    name = "echo"

    def __init__(self, says: str = "") -> None:
        self.says = says

    async def create(self, create_kwargs: Any = None) -> tuple[str, ToolResponse]:
        return f"made of {create_kwargs}", ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        if parameters.get("fail"):
            raise RuntimeError("no connection")
        return ToolResponse(text=self.says or f"{instance_id}: {parameters}"), 1.0, {}

    async def release(self, instance_id: str) -> None: ...


def call_on_stand_in(tool: Echo, name: str, arguments: Any, **limits: Any) -> tuple[str, float]:
    """As tests of verl's call it: an object with the loop's methods and three of its attributes."""
    loop = MagicMock(spec=ToolAgentLoop)
    loop.tools = {tool.name: tool}
    loop.max_tool_response_length = limits.get("longest", 1000)
    loop.tool_response_truncate_side = limits.get("side", "left")
    calling = ToolAgentLoop._call_tool(loop, SimpleNamespace(name=name, arguments=arguments), {}, SimpleNamespace())  # type: ignore[arg-type]
    response, reward, _ = asyncio.run(calling)
    return str(response.text), reward


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("ehco", "{}", ("Unknown function 'ehco'", "echo")),
        ("echo", "{a: 3}", ("Invalid JSON", "'echo'")),
        ("echo", "", ("Invalid JSON",)),
        ("echo", None, ("Invalid JSON",)),
        ("echo", '{"fail": true}', ("'echo'", "no connection")),
    ],
)
def test_what_is_wrong_with_a_call_is_said(name: str, arguments: Any, told: tuple[str, ...]) -> None:
    """To the model, without a reward."""
    text, reward = call_on_stand_in(Echo(), name, arguments)
    assert reward == 0.0 and all(each in text for each in told)


def test_without_a_tokenizer_answers_are_cut_to_characters() -> None:
    """At the side that is named; the mark comes on top."""
    said = Echo("Rome lies by the sea. Answer: Paris")
    assert call_on_stand_in(said, "echo", "{}", longest=13)[0] == "(truncated)...Answer: Paris"
    assert call_on_stand_in(said, "echo", "{}", longest=4, side="right")[0] == "Rome...(truncated)"
    assert call_on_stand_in(said, "echo", "{}") == (said.says, 1.0)


class Older(ToolAgentLoop):
    """As verl 0.6 writes it, without the data."""

    async def _call_tool(self, tool_call: Any, tools_kwargs: Any) -> Any:  # type: ignore[override]
        response, reward, metrics = await super()._call_tool(tool_call, tools_kwargs)
        return ToolResponse(text=f"<{response.text}>"), reward, metrics


class Open(ToolAgentLoop):
    async def _call_tool(self, *args: Any, **kwargs: Any) -> Any:
        response, reward, metrics = await super()._call_tool(*args, **kwargs)
        return ToolResponse(text=f"<{response.text}>"), reward, metrics


@pytest.mark.parametrize("cls", [Older, Open])
def test_calls_of_tools_as_older_classes_write_them(cls: Any, play: Play, plan: Callable[..., Config]) -> None:
    """The tools are those of the trajectory, opened once."""
    played = play(cls, BARE, [says("add", a=2, b=3), "done"], plan=plan())
    assert [message.content for message in observations(played)] == ["<5>"]
    assert played.scored.metrics["tools/num_calls"] == 1


class OwnRun(ToolAgentLoop):
    """Has a tool of another class, and a `run` from before rows selected tools."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tools["echo"] = Echo("Rome lies by the sea. " * 9)  # type: ignore[assignment]
        self.max_tool_response_length, self.tool_response_truncate_side = 20, "right"

    async def run(self, sampling_params: Any, priority: int = 0, **kwargs: Any) -> Any:
        data = AgentData(messages=list(kwargs["raw_prompt"]), tools_kwargs={"echo": {"create_kwargs": {"a": 1}}})
        state = AgentState.PENDING
        while state is not AgentState.TERMINATED:
            state = await self._step(state, data, sampling_params)
        own = SimpleNamespace(tools_kwargs={})  # of a class of the user's own
        told, reward, _ = await self._call_tool(FunctionCall(name="add", arguments='{"a": 1, "b": 2}'), {}, own)  # type: ignore[arg-type]
        assert (told.text, reward) == ("3", 0.0)
        return self._output(data)


def test_a_run_that_selects_no_tools_has_them_all(play: Play, plan: Callable[..., Config]) -> None:
    """Tools of the run and of the loop's own; the loop's own attributes limit what they say."""
    played = play(OwnRun, BARE, [says("add", a=2, b=3), says("echo", n=1), "done"], plan=plan())
    first, second = (str(message.content) for message in observations(played))
    assert first == "5" and second.startswith("Rome") and second.endswith("...(truncated)")
    assert len(play.text.tokenizer.encode(second)) <= 20  # type: ignore[attr-defined]
    assert [tool.name for tool in played.record.turns[0].tools] == ["add", "shout"]  # echo has no schema to show
    assert played.scored.metadata["tool_rewards"] == [0.0, 1.0]


@ToolParser.register("loud")
class Loud(ToolParser):
    """A call is an answer in capitals."""

    async def extract_tool_calls(self, responses_ids: Any, tools: Any = None) -> Any:
        text = self.tokenizer.decode(responses_ids).removesuffix(self.tokenizer.pad_token)
        return text, [FunctionCall(name="add", arguments='{"a": 1, "b": 2}')] if text.isupper() else []


def test_a_format_that_code_registers_is_the_loops(play: Play, plan: Callable[..., Config]) -> None:
    """verl's own way to a format of one's own; one that nobody knows is an error before anything is played."""
    played = play(ToolAgentLoop, BARE, ["ONE AND TWO", "three"], plan=plan(format="loud"))
    shown = play.text.tokenizer.decode(played.engine.calls[1].prompt_ids)  # type: ignore[attr-defined]
    assert "<tool_response>\n3\n" in shown and played.texts == ["ONE AND TWO", "three"]
    assert plan(format="loud").model.tool_parser == "auto"
    with pytest.raises(UserError, match=r"Unknown tool_parser 'quiet'\. Known are: auto, "):
        from_loop(None, {}, plan(format="quiet"))
