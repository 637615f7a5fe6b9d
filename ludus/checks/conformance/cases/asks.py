"""What several cases ask for: tools, schemas, and what our own model answers to them.

Knows: words.  Knows not: protocols beyond the shape of a tool.
"""

from __future__ import annotations

from typing import Any

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
    """A call as our own model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


WEATHER_CALL = call_text("get_weather", WEATHER_ARGUMENTS)
TIME_CALL = call_text("get_time", TIME_ARGUMENTS)
BROKEN_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": }}\n</tool_call>'
UNICODE = "Zażółć gęślą 日本語 🏳️‍🌈 שלום a\u2028b \U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 ﷽."
