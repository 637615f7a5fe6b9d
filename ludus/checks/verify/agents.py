"""The same agent with two tools, written with each official SDK, streamed and not.

Knows: the SDKs, their common conversation.  Knows not: the model, the record.
The conversation, in six model calls: a question, one tool call, two parallel calls of which one fails, an answer;
another question, two parallel calls, an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from ludus.checks.sdk import sdk

INSTRUCTIONS = "You answer with the tools' help."
QUESTIONS = ("How much is six and seven?", "And what is a quoin?")
MAX_TOKENS = 1000
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "add": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    "look_up": {"type": "object", "properties": {"word": {"type": "string"}}},
}
DESCRIPTIONS = {"add": "The sum.", "look_up": "The meaning of a word."}
MOST_CALLS = 12
"""Model calls after which an agent gives up."""


@dataclass(frozen=True, slots=True)
class Called:
    """One call of a tool, as the SDK shows it."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CallResult:
    call_id: str
    text: str
    is_error: bool


class SdkAgent:
    """Base of the agents; both methods return the tool calls in the model's answer."""

    package, client = "openai", "OpenAI"

    def __init__(self, base_url: str, *, stream: bool) -> None:
        self._client = getattr(sdk(self.package), self.client)(base_url=base_url, api_key="any")
        self._stream = stream
        self._messages: list[Any] = []

    def ask(self, question: str) -> list[Called]:
        return self._send([{"role": "user", "content": question}])

    def hand_in(self, results: Sequence[CallResult]) -> list[Called]:
        raise NotImplementedError

    def close(self) -> None:
        """Closes the SDK's connections."""
        self._client.close()

    def _send(self, messages: Sequence[Any]) -> list[Called]:
        raise NotImplementedError


MakeAgent = Callable[[str], SdkAgent]
"""Makes an agent for the base URL of its session."""


def converse(agent: SdkAgent) -> None:
    """Ask both questions, each until the model makes no more tool calls; then close the agent."""
    with closing(agent):
        for question in QUESTIONS:
            calls = agent.ask(question)
            for _ in range(MOST_CALLS):
                if calls:
                    calls = agent.hand_in([_use_tool(call) for call in calls])


def _use_tool(call: Called) -> CallResult:
    if call.name == "add":
        return CallResult(call.id, f"{call.arguments['a'] + call.arguments['b']:g}", False)
    return CallResult(call.id, f"Error: there is no {call.arguments['word']!r}.", True)


def _tools(schema_name: str) -> list[dict[str, Any]]:
    """Both tools. schema_name: the protocol's name for the field with the schema."""
    return [{"name": name, "description": DESCRIPTIONS[name], schema_name: each} for name, each in SCHEMAS.items()]


def _answer(resource: Any, name: str, streamed: bool, asked: Mapping[str, Any]) -> Any:
    """The SDK's object for an answer, streamed or not. name: its type in the SDK."""
    if not streamed:
        return resource.create(**asked)
    with resource.stream(**asked) as stream:
        return getattr(stream, f"get_final_{name}")()


class ChatAgent(SdkAgent):
    """Through `client.chat.completions`."""

    def hand_in(self, results: Sequence[CallResult]) -> list[Called]:
        return self._send([{"role": "tool", "tool_call_id": each.call_id, "content": each.text} for each in results])

    def _send(self, messages: Sequence[Any]) -> list[Called]:
        self._messages += messages
        tools = [{"type": "function", "function": function} for function in _tools("parameters")]
        said = [{"role": "system", "content": INSTRUCTIONS}, *self._messages]
        asked = {"model": "default", "messages": said, "tools": tools, "max_tokens": MAX_TOKENS}
        message = _answer(self._client.chat.completions, "completion", self._stream, asked).choices[0].message
        self._messages.append(message)
        calls = message.tool_calls or []
        return [Called(call.id, call.function.name, json.loads(call.function.arguments)) for call in calls]


class ResponsesAgent(SdkAgent):
    """Through `client.responses`. by_id: continues the previous response; otherwise sends the whole history."""

    def __init__(self, base_url: str, *, stream: bool, by_id: bool) -> None:
        super().__init__(base_url, stream=stream)
        self._by_id = by_id
        self._last_id: str | None = None

    def hand_in(self, results: Sequence[CallResult]) -> list[Called]:
        return self._send(
            [{"type": "function_call_output", "call_id": each.call_id, "output": each.text} for each in results]
        )

    def _send(self, items: Sequence[Any]) -> list[Called]:
        self._messages += items
        tools = [{"type": "function", **tool, "strict": False} for tool in _tools("parameters")]
        asked: dict[str, Any] = {"model": "default", "instructions": INSTRUCTIONS, "tools": tools}
        asked |= {"input": items if self._by_id else self._messages, "max_output_tokens": MAX_TOKENS}
        if self._by_id and self._last_id is not None:
            asked["previous_response_id"] = self._last_id
        response = _answer(self._client.responses, "response", self._stream, asked)
        self._last_id = response.id
        self._messages += response.output
        calls = [item for item in response.output if item.type == "function_call"]
        return [Called(call.call_id, call.name, json.loads(call.arguments)) for call in calls]


class MessagesAgent(SdkAgent):
    """Through `client.messages`."""

    package, client = "anthropic", "Anthropic"

    def hand_in(self, results: Sequence[CallResult]) -> list[Called]:
        shown = [(each.call_id, {"content": each.text, "is_error": each.is_error}) for each in results]
        blocks = [{"type": "tool_result", "tool_use_id": call_id, **each} for call_id, each in shown]
        return self._send([{"role": "user", "content": blocks}])

    def _send(self, messages: Sequence[Any]) -> list[Called]:
        self._messages += messages
        asked: dict[str, Any] = {"model": "default", "system": INSTRUCTIONS, "tools": _tools("input_schema")}
        asked |= {"messages": self._messages, "max_tokens": MAX_TOKENS}
        message = _answer(self._client.messages, "message", self._stream, asked)
        self._messages.append({"role": "assistant", "content": message.content})
        return [Called(block.id, block.name, block.input) for block in message.content if block.type == "tool_use"]


AGENTS: Mapping[str, MakeAgent] = {
    f"{name}{' streamed' if stream else ''}": partial(agent, stream=stream)
    for name, agent in (
        ("chat", ChatAgent),
        ("responses", partial(ResponsesAgent, by_id=False)),
        ("responses by id", partial(ResponsesAgent, by_id=True)),
        ("messages", MessagesAgent),
    )
    for stream in (False, True)
}
"""All agents, by name."""
