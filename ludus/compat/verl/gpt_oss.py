"""A tool's answer in gpt-oss's own format, for loops that append it as text.

Knows: the format's marks.  Knows not: tokens, tools.
Source: https://cookbook.openai.com/articles/openai-harmony, "Function calling".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def format_gpt_oss_tool_response_manually(tool_response: str, tool_call_name: str) -> str:
    """What the tool of this name says to the assistant."""
    head = f"<|start|>functions.{tool_call_name} to=assistant<|channel|>commentary"
    return f"{head}<|message|>{tool_response}<|end|>"


def add_generation_prompt_for_gpt_oss(message_content: str) -> str:
    """The text, after which the assistant goes on."""
    return f"{message_content}<|start|>assistant"


def build_gpt_oss_tool_response_text(messages: Sequence[Mapping[str, Any]], tool_call_names: Sequence[str]) -> str:
    """The answers of several tools, in their order, after which the assistant goes on."""
    said = zip(messages, tool_call_names, strict=True)
    return add_generation_prompt_for_gpt_oss(
        "".join(format_gpt_oss_tool_response_manually(message["content"], name) for message, name in said)
    )
