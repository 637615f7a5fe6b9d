"""What several cases ask for: tools, schemas, what the local model answers to them, and the shape of an error.

Knows: words.  Knows not: protocols beyond the shape of a tool.
"""

from __future__ import annotations

from typing import Any

import httpx

from ludus.checks.conformance import expect

THOUGHT = "<think>\nParis is in France.\n</think>\n\nIt rains."
# A model that is forced to call may still write its JSON with many blanks.
ROOM = 256
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
POINT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "x": {"type": "integer"},
        "unit": {"enum": ["m", "km"]},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
        "origin": {
            "type": "object",
            "properties": {"known": {"type": "boolean"}},
            "required": ["known"],
            "additionalProperties": False,
        },
    },
    "required": ["x", "unit", "tags", "origin"],
    "additionalProperties": False,
}
QUESTION = "What is the weather in Paris, and what time is it there?"
ASK_WEATHER: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]


def chat_tool(name: str, description: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": CITY, **more},
    }


CHAT_TOOLS = [chat_tool("get_weather", "The weather in a city."), chat_tool("get_time", "The time in a city.")]
RESPONSE_TOOLS: list[dict[str, Any]] = [
    {"type": "function", **tool["function"], "strict": False} for tool in CHAT_TOOLS
]
MESSAGE_TOOLS: list[dict[str, Any]] = [
    {
        "name": tool["function"]["name"],
        "description": tool["function"]["description"],
        "input_schema": CITY,
    }
    for tool in CHAT_TOOLS
]
# Blanks, an escape and an order of keys that no writer of JSON would choose: what was sampled must arrive as it was.
WEATHER_ARGUMENTS = '{ "city":"Paris",  "note": "caf\\u00e9" }'
TIME_ARGUMENTS = '{"city": "Rome"}'


def call_text(name: str, arguments: str) -> str:
    """A call as the local model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


WEATHER_CALL = call_text("get_weather", WEATHER_ARGUMENTS)
TIME_CALL = call_text("get_time", TIME_ARGUMENTS)
BROKEN_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": }}\n</tool_call>'
UNICODE = "Zażółć gęślą 日本語 🏳️‍🌈 שלום a\u2028b \U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 ﷽."


def chat_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A `response_format`."""
    return {"type": "json_schema", "json_schema": {"name": "point", "schema": schema, "strict": True}}


def check_error(answer: httpx.Response, *statuses: int, of_messages: bool = False) -> dict[str, Any]:
    """The error in `answer`, in the shape of OpenAI's protocols, or of Anthropic's."""
    expect.one_of(f"status of {answer.text[:120]!r}", answer.status_code, statuses)
    expect.contains("content-type", answer.headers.get("content-type"), "application/json")
    body = expect.json_object("the body", answer.text)
    if of_messages:
        expect.equal("type of the body", body.get("type"), "error")
    error = body.get("error")
    if not isinstance(error, dict):
        raise expect.ExpectationError("the body", "an object under 'error'", body)
    expect.text("message of the error", error.get("message"))
    expect.text("type of the error", error.get("type"))
    return error


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A format of Responses."""
    return {"type": "json_schema", "name": "point", "schema": schema, "strict": True}


def check_point(text: str) -> None:
    """The schema `POINT`, by hand."""
    value = expect.json_object("the text", text)
    expect.equal("fields", sorted(value), ["origin", "tags", "unit", "x"])
    expect.that("x", type(value["x"]) is int, "an integer", value["x"])
    expect.one_of("unit", value["unit"], ("m", "km"))
    tags = value["tags"]
    is_list = isinstance(tags, list) and 1 <= len(tags) <= 2 and all(isinstance(tag, str) for tag in tags)
    expect.that("tags", is_list, "one or two strings", tags)
    expect.that("origin", isinstance(value["origin"].get("known"), bool), "an object with a boolean", value["origin"])


def check_json_object(text: str, *, is_cut: bool) -> None:
    """The text of a JSON object; of one that a limit cut, the beginning: what stands in it is the model's affair."""
    if is_cut:
        expect.that("the text, which was cut", text.lstrip().startswith("{"), "the beginning of a JSON object", text)
    else:
        expect.json_object("the text", text)


def check_city(arguments: str) -> None:
    """The schema `CITY`, by hand: an object with one city of two."""
    value = expect.json_object("arguments", arguments)
    expect.equal("fields of the arguments", sorted(value), ["city"])
    expect.one_of("city", value["city"], ("Paris", "Rome"))
