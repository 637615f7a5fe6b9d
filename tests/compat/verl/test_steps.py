"""Steps of the tool agent that are written in verl's own way: in tokens, with its tools, its parser, its trajectory."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ludus.agents.tools.base import ToolResponse
from ludus.agents.tools.schema import OpenAIFunctionToolSchema
from ludus.compat.config import Config
from ludus.compat.verl.agent_data import AgentState
from ludus.compat.verl.base import get_event_loop, simple_timer
from ludus.compat.verl.function_tools import FunctionTool, normalize_function_tool_return
from ludus.compat.verl.parser import FunctionCall, ToolParser
from ludus.compat.verl.tool_loop import ToolAgentLoop
from tests.compat.verl.conftest import ReplayResult
from tests.compat.verl.test_tool_loop import ROW, observations, plan, says

__all__ = ["plan"]  # a fixture
Play = Callable[..., ReplayResult]
BARE = {"prompt": ROW["prompt"]}


class CallsItself(ToolAgentLoop):
    """Looks tools up, calls them and reads the trajectory by verl's names."""

    async def _call_tool(self, tool_call: Any, tools_kwargs: Any, agent_data: Any) -> Any:
        active = getattr(agent_data, "_active_tools", self.tools)
        assert tool_call.tool_call_id is not None and tools_kwargs == {}
        assert [schema["function"]["name"] for schema in self.tool_schemas] == ["add", "shout"]
        assert self.tool_parser_name == "auto" and self.max_tool_response_length == 256
        tool = active[tool_call.name]
        assert isinstance(tool, FunctionTool)
        response, reward, metrics = normalize_function_tool_return(await tool.call(json.loads(tool_call.arguments)))
        assert agent_data.messages[-1]["tool_calls"][0]["function"]["name"] == "add"
        assert agent_data.response_mask == [1] * len(agent_data.response_ids) and agent_data.assistant_turns == 1
        assert agent_data.prompt_ids[-len(agent_data.response_ids) :] == agent_data.response_ids
        agent_data.metrics["tool_calls"] = 100.0
        return ToolResponse(text=f"<{response.text}>"), reward + 0.5, metrics


def test_a_call_of_tools_in_verls_own_way(play: Play, plan: Callable[..., Config]) -> None:
    played = play(CallsItself, BARE, [says("add", a=2, b=3), "done"], plan=plan())
    assert [message.content for message in observations(played)] == ["<5>"]
    assert played.scored.metadata["tool_rewards"] == [0.5] and not played.scored.left_out
    assert played.scored.metrics["time/tool_calls_s"] > 100


class Scales(ToolAgentLoop):
    async def _call_tool(self, tool_call: Any, tools_kwargs: Any, agent_data: Any) -> Any:
        response, reward, metrics = await super()._call_tool(tool_call, tools_kwargs, agent_data)
        return response, reward * 2 + 1, metrics


def test_a_call_of_tools_returns_what_verls_does(play: Play, plan: Callable[..., Config]) -> None:
    """Response, reward (0 where the tool gives none) and metrics."""
    played = play(Scales, BARE, [says("add", a=2, b=3), "done"], plan=plan())
    assert played.scored.metadata["tool_rewards"] == [1.0]


class AsksItself(ToolAgentLoop):
    """Asks with tokens and finds the calls in tokens."""

    async def _handle_generating_state(
        self, agent_data: Any, sampling_params: Any, ignore_termination: bool = False
    ) -> Any:
        with simple_timer("generate_sequences", agent_data.metrics):
            output = await self.server_manager.generate(
                request_id=agent_data.request_id,
                prompt_ids=agent_data.prompt_ids,
                sampling_params=sampling_params,
                image_data=agent_data.image_data,
                mm_processor_output=agent_data.mm_processor_output,
                mm_processor_kwargs=agent_data.mm_processor_kwargs,
            )
        agent_data.assistant_turns += 1
        agent_data.response_ids = output.token_ids
        merged, agent_data.response_mask, agent_data.response_logprobs = await self.ct_merge_assistant_token(
            agent_data.prompt_ids,
            agent_data.response_ids,
            agent_data.response_mask,
            agent_data.response_logprobs,
            assistant_logprobs=output.log_probs,
        )
        agent_data.prompt_ids = merged.token_ids
        if len(agent_data.response_mask) >= self.response_length:
            return AgentState.TERMINATED
        schemas = [tool.tool_schema for tool in agent_data._active_tools.values()]
        content, agent_data.tool_calls = await self.tool_parser.extract_tool_calls(agent_data.response_ids, schemas)
        agent_data.messages.append(self._build_assistant_message(content, agent_data))
        return AgentState.PROCESSING_TOOLS if agent_data.tool_calls else AgentState.TERMINATED


class AnswersItself(ToolAgentLoop):
    """Appends what tools say to tokens and messages, and masks the last answer for a reason of its own."""

    async def _handle_processing_tools_state(self, agent_data: Any) -> Any:
        before = list(agent_data.messages)
        for call in agent_data.tool_calls[: self.max_parallel_calls]:
            response, reward, _ = await self._call_tool(call, agent_data.tools_kwargs, agent_data)
            agent_data.tool_rewards.append(reward)
            agent_data.messages.append({"role": "tool", "content": response.text or ""})
        merged, mask, logprobs = await self.ct_merge_context_msg(
            before,
            agent_data.messages,
            agent_data.prompt_ids,
            agent_data.response_mask,
            agent_data.response_logprobs,
            tools=agent_data._active_tool_schemas,
        )
        agent_data.prompt_ids, agent_data.response_logprobs = merged.token_ids, logprobs
        agent_data.response_mask = [0] * len(mask)
        agent_data.user_turns += 1
        return AgentState.GENERATING


@pytest.mark.parametrize("cls", [AsksItself, AnswersItself])
def test_a_step_in_tokens_goes_beside_steps_in_messages(cls: Any, play: Play, plan: Callable[..., Config]) -> None:
    """The model sees the same tokens as with the steps that come with Ludus; a mask that a step changed holds."""
    answers = [says("add", a=2, b=3), "done"]
    own, shipped = (play(each, BARE, answers, plan=plan()) for each in (cls, ToolAgentLoop))
    paths = [[played.record.path_ids(turn.node) for turn in played.record.turns] for played in (own, shipped)]
    assert paths[0] == paths[1] and own.record.turns[1].prefix == own.record.turns[0].id
    assert own.scored.metrics["num_turns"] == 4 and own.scored.reward == 1.0
    assert set(own.scored.left_out) == ({own.record.turns[0].id} if cls is AnswersItself else set())


class Hints(ToolAgentLoop):
    """Puts tokens behind the prompt that stand in no message, as steps of verl's may."""

    async def _handle_processing_tools_state(self, agent_data: Any) -> Any:
        state = await super()._handle_processing_tools_state(agent_data)
        hint = self.tokenizer.encode("Well, ")
        agent_data.prompt_ids = [*agent_data.prompt_ids, *hint]
        agent_data.response_mask = [*agent_data.response_mask, *[0] * len(hint)]
        agent_data.response_logprobs = [*agent_data.response_logprobs, *[0.0] * len(hint)]
        return state


def test_tokens_that_a_step_appends_are_what_the_model_goes_on_with(play: Play, plan: Callable[..., Config]) -> None:
    answers = [says("add", a=2, b=3), says("add", a=1, b=1), "done"]
    played = play(Hints, BARE, answers, plan=plan())
    shown = [play.text.tokenizer.decode(call.prompt_ids) for call in played.engine.calls]  # type: ignore[attr-defined]
    assert [text.count("Well, ") for text in shown] == [0, 1, 2] and shown[2].endswith("assistant\nWell, ")
    assert not played.scored.left_out and played.scored.metadata["tool_rewards"] == [0.0, 0.0]
    assert [turn.prefix for turn in played.record.turns] == [None, *(turn.id for turn in played.record.turns[:2])]


class OwnTools(ToolAgentLoop):
    """Has a tool that no file names, and a parser of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tools = {"twice": TWICE}
        self.tool_parser = Shouts(self.tokenizer)


class Shouts(ToolParser):
    @property
    def stop_token_ids(self) -> list[int]:
        assert self.tokenizer.convert_tokens_to_ids(["no such token"]) == [None]
        return [self.tokenizer.convert_tokens_to_ids(self.tokenizer.eos_token)]

    async def extract_tool_calls(self, responses_ids: Any, tools: Any = None) -> Any:
        assert [tool.function.name for tool in tools] == ["twice"]
        decoded = await get_event_loop().run_in_executor(None, self.tokenizer.decode, responses_ids)
        text = decoded.removesuffix(self.tokenizer.pad_token)
        calls = [FunctionCall(name="twice", arguments='{"number": 4}')] if text.isupper() else []
        return text, calls


def _twice(number: int) -> str:
    return str(2 * number)


TWICE = FunctionTool(
    "twice",
    _twice,
    OpenAIFunctionToolSchema(
        type="function",
        function={
            "name": "twice",
            "description": "Doubles.",
            "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}},
        },
    ),
)


def test_tools_and_a_parser_of_the_loops_own(play: Play, plan: Callable[..., Config]) -> None:
    """They stand in the place of the run's."""
    played = play(OwnTools, BARE, ["TWICE FOUR", "eight"], plan=plan())
    shown = play.text.tokenizer.decode(played.engine.calls[1].prompt_ids)  # type: ignore[attr-defined]
    assert "Doubles." in shown and "shout" not in shown and "<tool_response>\n8\n" in shown
    assert played.texts == ["TWICE FOUR", "eight"] and not played.scored.left_out
