"""Answers of tools as gpt-oss reads them."""

from __future__ import annotations

from ludus.compat.verl.gpt_oss import build_gpt_oss_tool_response_text


def test_answers_stand_before_the_next_turn() -> None:
    """In OpenAI's harmony format."""
    assert build_gpt_oss_tool_response_text([{"content": "26"}, {"content": "3"}], ["heat", "rain"]) == (
        "<|start|>functions.heat to=assistant<|channel|>commentary<|message|>26<|end|>"
        "<|start|>functions.rain to=assistant<|channel|>commentary<|message|>3<|end|><|start|>assistant"
    )
