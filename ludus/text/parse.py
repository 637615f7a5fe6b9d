"""Chooses the parser for a model's replies, by its chat template or by name.

Knows: the formats and how to recognise them in a template.  Knows not: tokens, requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ludus.errors import UserError
from ludus.text.parsers.base import ToolParser
from ludus.text.parsers.calls import CallFormat, call_parser
from ludus.text.parsers.deepseek import deepseek
from ludus.text.parsers.glm import GLM
from ludus.text.parsers.gpt_oss import GPT_OSS
from ludus.text.parsers.hermes import HERMES
from ludus.text.parsers.kimi import KIMI
from ludus.text.parsers.llama3 import LLAMA3
from ludus.text.parsers.minimax import minimax
from ludus.text.parsers.mistral import mistral
from ludus.text.parsers.plain import plain_parser
from ludus.text.parsers.pythonic import pythonic
from ludus.text.parsers.qwen3_coder import QWEN3_CODER
from ludus.text.parsers.tags import THINK_CLOSE, THINK_OPEN

_FORMATS: Mapping[str, Callable[[str], CallFormat]] = {
    "deepseek": deepseek,
    "glm": lambda _: GLM,
    "hermes": lambda _: HERMES,
    "kimi": lambda _: KIMI,
    "llama3": lambda _: LLAMA3,
    "minimax": minimax,
    "mistral": mistral,
    "pythonic": pythonic,
    "qwen3_coder": lambda _: QWEN3_CODER,
}
"""Name to the format, given the template: models of one family differ in how they write it."""

PARSERS = (*sorted(_FORMATS), "gpt_oss", "plain")
"""The names that `parser_for` accepts."""

# What shows a format in a template, all of it. The first that is found counts: several formats share `<tool_call>`.
_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("gpt_oss", ("<|channel|>",)),
    ("deepseek", ("<｜tool▁calls▁begin｜>",)),
    ("kimi", ("<|tool_calls_section_begin|>",)),
    ("minimax", ("<minimax:tool_call>",)),
    ("minimax", ("<tool_calls>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("glm", ("<arg_key>",)),
    ("qwen3_coder", ("<function=",)),
    ("hermes", ("<tool_call>",)),
    ("pythonic", ("<|tool_call_start|>",)),
    ("pythonic", ("<|python_start|>",)),
    ("pythonic", ("[func_name1(",)),
    ("llama3", ("<|start_header_id|>", '"parameters": ')),
)


def parser_for(template_source: str | None, name: str = "auto") -> ToolParser:
    """The parser `name`; 'auto': the one recognised in the template, else plain.

    With any parser, thinking is split off if the template contains the thinking tag.
    Raises UserError for an unknown name.
    """
    source = template_source or ""
    if name == "auto":
        name = next((name for name, signs in _SIGNS if all(sign in source for sign in signs)), "plain")
    splits_reasoning = THINK_OPEN in source or THINK_CLOSE in source
    if name == "gpt_oss":
        return GPT_OSS
    if name == "plain":
        return plain_parser(splits_reasoning=splits_reasoning)
    if name not in _FORMATS:
        raise UserError(f"Unknown tool_parser {name!r}. Known are: auto, {', '.join(sorted(PARSERS))}.")
    return call_parser(_FORMATS[name](source), splits_reasoning=splits_reasoning)


def opens_reasoning(prompt_text: str) -> bool:
    """Whether the prompt ends inside a thinking block that it opened, so that the reply begins as thinking."""
    return prompt_text.rstrip().endswith(THINK_OPEN)
