"""Requests shared by several cases: tools, schemas, the local model's answers to them; and checks of errors.

Knows: words.  Knows not: protocols beyond the shape of a tool.
"""

from __future__ import annotations

from typing import Any

import httpx

from ludus.checks.conformance import expect
from ludus.checks.conformance.expect import TEXT, Some, one_of

Item = dict[str, Any]


def message(role: str, content: Any) -> Item:
    return {"role": role, "content": content}


def user(content: Any) -> Item:
    return message("user", content)


def closed(**properties: Item) -> Item:
    """The schema of an object with exactly these properties, all required."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


ASK: list[Item] = [user("Name some colours, separated by blanks.")]
COLOURS = "red green blue white black"
BLANKS = '  Two blanks,\n\n\ttabs \\ and "quotes" — </s> <b> & 100%.\r\n'
THOUGHT = "<think>\nParis is in France.\n</think>\n\nIt rains."
# Tokens for a forced call, as a model may write its JSON with much whitespace.
ROOM = 256
CITY = closed(city={"type": "string", "enum": ["Paris", "Rome"]})
POINT = closed(
    x={"type": "integer"},
    unit={"enum": ["m", "km"]},
    tags={"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
    origin=closed(known={"type": "boolean"}),
)
QUESTION = "What is the weather in Paris, and what time is it there?"
TOLD = {"get_weather": "The weather in a city.", "get_time": "The time in a city."}
NAMES = [*TOLD]
FUNCTIONS: list[Item] = [{"name": name, "description": TOLD[name], "parameters": CITY} for name in NAMES]
# Whitespace, an escape and a key order that no JSON serializer produces: the client must get exactly what was sampled.
WEATHER_ARGUMENTS = '{ "city":"Paris",  "note": "caf\\u00e9" }'
TIME_ARGUMENTS = '{"city": "Rome"}'


def call_text(name: str, arguments: str) -> str:
    """A tool call in the local model's format."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


WEATHER_CALL = call_text("get_weather", WEATHER_ARGUMENTS)
TIME_CALL = call_text("get_time", TIME_ARGUMENTS)
TWO_CALLS = f"{WEATHER_CALL}\n{TIME_CALL}"
BROKEN_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": }}\n</tool_call>'
UNICODE = "Zażółć gęślą 日本語 🏳️‍🌈 שלום a\u2028b \U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 ﷽."


def check_error(answer: httpx.Response, *statuses: int, of_messages: bool = False, **fields: object) -> None:
    """Check that `answer` is an error in the format of OpenAI's protocols, or of Anthropic's, with these fields."""
    expect.equal(f"status of {answer.text[:120]!r}", answer.status_code, one_of(*statuses))
    expect.equal("content-type", answer.headers.get("content-type"), expect.containing("application/json"))
    body = expect.json_object("the body", answer.text)
    if of_messages:
        expect.equal("type of the body", body.get("type"), "error")
    error = body.get("error")
    expect.that("the body", isinstance(error, dict), "an object under 'error'", body)
    expect.parts(error, **{"message": TEXT, "type": TEXT, **fields})


def check_point(text: str) -> None:
    """Check text against the schema `POINT`, without a validator."""
    value = expect.json_object("the text", text)
    expect.equal("fields", sorted(value), ["origin", "tags", "unit", "x"])
    expect.parts(
        value,
        x=Some("an integer", lambda x: type(x) is int),
        unit=one_of("m", "km"),
        tags=Some("one or two strings", lambda tags: [*map(type, tags)] in ([str], [str, str])),
        origin=Some("an object with a boolean", lambda origin: isinstance(origin.get("known"), bool)),
    )


def check_city(arguments: str) -> None:
    """Check text against the schema `CITY`, without a validator: an object with one of two cities."""
    value = expect.json_object("arguments", arguments)
    expect.equal("fields of the arguments", sorted(value), ["city"])
    expect.equal("city", value["city"], one_of("Paris", "Rome"))
