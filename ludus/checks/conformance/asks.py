"""What several cases ask for: tools, schemas, what the local model answers to them, and the shape of an error.

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
    """The schema of an object with all of these and no other."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


ASK: list[Item] = [user("Name some colours, separated by blanks.")]
COLOURS = "red green blue white black"
BLANKS = '  Two blanks,\n\n\ttabs \\ and "quotes" — </s> <b> & 100%.\r\n'
THOUGHT = "<think>\nParis is in France.\n</think>\n\nIt rains."
# A model that is forced to call may still write its JSON with many blanks.
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
# Blanks, an escape and an order of keys that no writer of JSON would choose: what was sampled must arrive as it was.
WEATHER_ARGUMENTS = '{ "city":"Paris",  "note": "caf\\u00e9" }'
TIME_ARGUMENTS = '{"city": "Rome"}'


def call_text(name: str, arguments: str) -> str:
    """A call as the local model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


WEATHER_CALL = call_text("get_weather", WEATHER_ARGUMENTS)
TIME_CALL = call_text("get_time", TIME_ARGUMENTS)
TWO_CALLS = f"{WEATHER_CALL}\n{TIME_CALL}"
BROKEN_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": }}\n</tool_call>'
UNICODE = "Zażółć gęślą 日本語 🏳️‍🌈 שלום a\u2028b \U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 ﷽."


def check_error(answer: httpx.Response, *statuses: int, of_messages: bool = False, **fields: object) -> None:
    """`answer` is an error in the shape of OpenAI's protocols, or of Anthropic's, with these fields."""
    expect.equal(f"status of {answer.text[:120]!r}", answer.status_code, one_of(*statuses))
    expect.equal("content-type", answer.headers.get("content-type"), expect.containing("application/json"))
    body = expect.json_object("the body", answer.text)
    if of_messages:
        expect.equal("type of the body", body.get("type"), "error")
    error = body.get("error")
    expect.that("the body", isinstance(error, dict), "an object under 'error'", body)
    expect.parts(error, **{"message": TEXT, "type": TEXT, **fields})


def check_point(text: str) -> None:
    """The schema `POINT`, by hand."""
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
    """The schema `CITY`, by hand: an object with one city of two."""
    value = expect.json_object("arguments", arguments)
    expect.equal("fields of the arguments", sorted(value), ["city"])
    expect.equal("city", value["city"], one_of("Paris", "Rome"))
