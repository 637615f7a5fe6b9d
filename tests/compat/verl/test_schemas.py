"""Calls of tools, taken apart."""

from __future__ import annotations

import pytest

from ludus.compat.verl.schemas import OpenAIFunctionCallSchema, OpenAIFunctionParsedSchema, OpenAIFunctionToolCall


@pytest.mark.parametrize(
    ("text", "read", "is_wrong"), [('{"a": 1}', {"a": 1}, False), ("{a", {}, True), ("[1]", {}, True)]
)
def test_arguments_are_read_or_named_as_wrong(text: str, read: object, is_wrong: bool) -> None:
    parsed = OpenAIFunctionParsedSchema(name="f", arguments=text)
    call, found = OpenAIFunctionCallSchema.from_openai_function_parsed_schema(parsed)
    assert (call.arguments, found) == (read, is_wrong)
    assert OpenAIFunctionToolCall(id="1", function=call).type == "function"
