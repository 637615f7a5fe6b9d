"""The node of a graph that runs the tool calls of an answer, with timing and limits.

Knows: LangGraph's ToolNode, the tools of a trajectory, spans.  Knows not: models, rewards.
Invariant: every call of an answer gets one message, even if it failed, is of an unknown tool, exceeds the limit, or
could not be parsed; errors are shown to the model.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from ludus.agents.langchain.messages import UNDECODED
from ludus.agents.tools.answer import ToolLimits, ToolResult, shorten
from ludus.agents.tools.episode_tools import EpisodeTools, too_many, undecoded
from ludus.compat.verl.messages import undecoded_answers
from ludus.runs.spans import span
from ludus.text.chat import ChatText
from ludus.types import ToolCall


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """Limits of the tools of one trajectory; `tool_limits` in a graph's `configurable`."""

    max_parallel_calls: int | None = None
    """Limit on the calls of one answer that are run. None: no limit."""
    each: ToolLimits = field(default_factory=ToolLimits)
    """Limits of each call and its result."""
    text: ChatText | None = None
    """The chat text that counts the tokens of results, and whose template renders them. None: results are not
    limited."""
    episode_tools: EpisodeTools | None = None
    """The run's own tools, which the node runs beside those of LangChain. None: there are none."""


_NO_LIMITS = NodeLimits(each=ToolLimits(timeout_s=None))


class LimitedTools:
    """The node. Takes the state of a graph with `messages`, of which the last one calls."""

    def __init__(self, tools: Sequence[Any]) -> None:
        self._node = ToolNode(tools, handle_tool_errors=_failure, awrap_tool_call=_timed)

    async def __call__(self, state: Any, config: RunnableConfig) -> Any:
        limits = limits_of(config)
        *before, last = state["messages"]
        assert isinstance(last, AIMessage), "the edge to the tools begins at the model"
        most = len(last.tool_calls) if limits.max_parallel_calls is None else limits.max_parallel_calls
        rest: list[BaseMessage] = [
            _message(call, too_many(call["name"], call["args"], most)) for call in last.tool_calls[most:]
        ]
        rest += _undecoded(last, limits)
        if not last.tool_calls:
            return {"messages": rest}
        asking = last.model_copy(update={"tool_calls": last.tool_calls[:most]})
        answered = await self._node.ainvoke({**state, "messages": [*before, asking]}, config)
        if isinstance(answered, list):  # tools that say where the graph goes on
            return [*answered, Command(update={"messages": rest})] if rest else answered
        return {"messages": [*answered["messages"], *rest]}


def _message(call: Mapping[str, Any], result: ToolResult) -> ToolMessage:
    status: Literal["success", "error"] = "success" if result.error is None else "error"
    return ToolMessage(result.text, tool_call_id=call["id"] or "", name=call["name"], status=status)


def limits_of(config: RunnableConfig) -> NodeLimits:
    limits = config.get("configurable", {}).get("tool_limits", _NO_LIMITS)
    assert isinstance(limits, NodeLimits), "the loop puts them there"
    return limits


def calls_something(message: BaseMessage) -> bool:
    """Whether the answer has tool calls, or text that could not be parsed as one."""
    return isinstance(message, AIMessage) and bool(message.tool_calls or message.response_metadata.get(UNDECODED))


async def _timed(request: Any, execute: Callable[[Any], Awaitable[ToolMessage | Command[Any]]]) -> Any:
    limits, call = limits_of(request.runtime.config), request.tool_call
    asking = request.state.get("messages") if isinstance(request.state, Mapping) else None
    turn_id = asking[-1].id if asking else None
    own = limits.episode_tools
    if own is not None and call["name"] in [spec.name for spec in own.specs]:
        asked = ToolCall(call["id"] or "", call["name"], json.dumps(call["args"], ensure_ascii=False))
        return _message(call, await own.call(asked, turn_id=turn_id))
    tokenizer = None if limits.text is None else limits.text.tokenizer
    with span("tool", call["name"], inputs=call["args"]) as record:
        record.turn_id = turn_id
        try:
            message = await asyncio.wait_for(execute(request), limits.each.timeout_s)
        except TimeoutError:
            words = f"the tool {call['name']!r} did not answer within {limits.each.timeout_s} s"
            message = _message(call, ToolResult(f"Error: {words}", error=words))
        if isinstance(message, ToolMessage):
            if isinstance(message.content, str):
                message.content = shorten(message.content, limits.each, tokenizer)
            record.outputs = message.content
            record.error = str(message.content) if message.status == "error" else None
    return message


def _failure(error: Exception) -> str:
    """The result shown to the model when a tool failed."""
    return f"Error: {type(error).__name__}: {error}"


def _undecoded(message: AIMessage, limits: NodeLimits) -> list[BaseMessage]:
    """The messages for texts that could not be parsed as calls: as tool results, if the template can show those."""
    texts = [undecoded(raw, message.id).text for raw in message.response_metadata.get(UNDECODED, ())]
    if not texts or limits.text is None:
        return [ToolMessage(text, tool_call_id=f"undecoded{idx}", status="error") for idx, text in enumerate(texts)]
    return [
        ToolMessage(answer.content or "", tool_call_id=answer.tool_call_id or "", status="error")
        if answer.role == "tool"
        else HumanMessage(answer.content or "")
        for answer in undecoded_answers(limits.text.template, texts)
    ]
