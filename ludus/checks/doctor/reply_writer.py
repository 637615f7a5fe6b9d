"""Writes replies as the model of a template would sample them, derived from the template itself.

Knows: how the template renders a last message.  Knows not: parsers, forks.
Invariant: a reply is written as the template renders it, because the model was trained on that; thinking that the
template never shows is written inside the thinking tags.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ludus.errors import AgentError
from ludus.text.incremental import RenderedTurn
from ludus.text.parse import opens_reasoning
from ludus.text.parsers.tags import THINK_CLOSE, THINK_OPEN
from ludus.text.prefix_memo import num_same
from ludus.text.template import ChatTemplate
from ludus.types import Message, ToolCall, ToolSpec

SPECIAL = re.compile(r"<(?!/\w\w)[^<>\s]{1,60}>")
"""A special token in the usual forms, `</s>` included, but not the closing tag of an element."""
_CLOSED_ANSWER = re.compile(rf"(?:{SPECIAL.pattern})*({SPECIAL.pattern})")
_CLOSED_CALL = re.compile(rf"({SPECIAL.pattern})$")
_EMPTY_THINKING = re.compile(rf"\s*{THINK_OPEN}\s*{THINK_CLOSE}\s*")
_NO_THINKING = re.compile(rf"\s*(?:{THINK_OPEN}\s*)?{THINK_CLOSE}\s*")
_ASKED = Message("user", "Probe.")
_MARK = "ludusmark"
PROBE_TOOL = ToolSpec("probe", "Probe.", {"type": "object", "properties": {"key": {"type": "string"}}})


@dataclass(frozen=True, slots=True)
class ReplyWriter:
    """Writes replies as the model of one template would sample them."""

    template: ChatTemplate
    answer_stop: str
    """The token that ends an answer; '' if neither template nor tokenizer shows it."""
    call_stop: str
    """The token that ends a reply with tool calls."""

    @classmethod
    def of(cls, template: ChatTemplate, known_stops: Sequence[str] = ()) -> ReplyWriter:
        """known_stops: the texts of the model's stop tokens; empty when there is only a template."""
        call = ToolCall("call00000", PROBE_TOOL.name, f'{{"key": "{_MARK}"}}')
        result = Message("tool", "Probe.", tool_call_id="call00000")
        tools = (PROBE_TOOL,) if template.renders_tools else ()
        answer = _stop_after(template, Message("assistant", _MARK), (), _ASKED)
        calls = _stop_after(template, Message("assistant", tool_calls=(call,)), tools, result) if tools else ""
        eos = known_stops[0] if known_stops else template.special_tokens.get("eos_token", "")
        answer, calls = (stop if not known_stops or stop in known_stops else "" for stop in (answer, calls))
        return cls(template, answer or eos, calls or answer or eos)

    @property
    def stops(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(stop for stop in (self.answer_stop, self.call_stop) if stop))

    def write(self, asked: RenderedTurn) -> tuple[Message, str]:
        """The part of the intended reply that the model can write, and its sampled text, including the stop token.

        A prompt that begins or ends a thinking block determines whether the model thinks, as does a template without
        thinking. Raises AgentError if the template refuses such a reply.
        """
        meant = asked.reply
        if opens_reasoning(asked.prompt_text) and meant.reasoning is None:
            meant = replace(meant, reasoning="Hm.")
        elif asked.prompt_text.rstrip().endswith(THINK_CLOSE):
            meant = replace(meant, reasoning=None)
        rest = self._rest(asked, self._shown(asked, meant))
        thought = meant.reasoning
        if thought is not None and (not thought or thought not in rest):
            meant = meant if has_thinking_tags(self.template) else replace(meant, reasoning=None)
            rest = self._tagged(asked, meant)
        elif thought is None:
            empty = _EMPTY_THINKING.match(rest)
            rest = rest[empty.end() :] if empty else rest
        elif opens_reasoning(asked.prompt_text):
            rest = rest.removeprefix(THINK_OPEN)
        return meant, self._ended(rest, self.call_stop if meant.tool_calls else self.answer_stop)

    def _tagged(self, asked: RenderedTurn, meant: Message) -> str:
        """The text of a reply whose thinking the template does not show, with the thinking inside its tags."""
        rest = self._rest(asked, self._shown(asked, replace(meant, reasoning=None)))
        if meant.reasoning is None:
            return rest
        opener = "" if opens_reasoning(asked.prompt_text) else f"{THINK_OPEN}\n"
        empty = _NO_THINKING.match(rest)
        answer = (rest[empty.end() :] if empty else rest).lstrip()
        return f"{opener}{meant.reasoning}\n{THINK_CLOSE}\n\n{answer}"

    def _shown(self, asked: RenderedTurn, reply: Message) -> str:
        return self.template.render(
            [*asked.messages, reply], asked.tools, generation_prompt=False, template_kwargs=asked.template_kwargs
        )

    def _rest(self, asked: RenderedTurn, shown: str) -> str:
        """The rendered text after the prompt, in which the prompt's thinking tag may be missing."""
        begun = (
            asked.prompt_text.rstrip().removesuffix(THINK_OPEN)
            if opens_reasoning(asked.prompt_text)
            else asked.prompt_text
        )
        for opening in (asked.prompt_text, begun):
            if shown.startswith(opening):
                return shown[len(opening) :]
        # Earlier text has changed, so the reply begins after the last generation prompt.
        bare = self.template.render(
            asked.messages, asked.tools, generation_prompt=False, template_kwargs=asked.template_kwargs
        )
        asking = begun[num_same(bare, begun) :]
        at = shown.find(asking, num_same(shown, begun)) if asking else -1
        return shown[at + len(asking) :] if at >= 0 else shown[num_same(shown, begun) :]

    @staticmethod
    def _ended(text: str, stop: str) -> str:
        """`text` up to its stop token, which is added if it is missing; only special tokens may follow it."""
        at = text.rfind(stop) if stop else -1
        if at >= 0 and not SPECIAL.sub("", text[at + len(stop) :]).strip():
            return text[: at + len(stop)]
        return text + stop


def has_thinking_tags(template: ChatTemplate) -> bool:
    """Whether the model uses the usual thinking tags."""
    return THINK_OPEN in template.source or THINK_CLOSE in template.source


def _stop_after(template: ChatTemplate, reply: Message, tools: Sequence[ToolSpec], then: Message) -> str:
    """The special token that closes `reply` as the last message, else the one with which `then` begins."""
    try:
        last = template.render([_ASKED, reply], tools, generation_prompt=False)
        more = template.render([_ASKED, reply, then], tools, generation_prompt=False)
    except AgentError:
        return ""
    before, _, after = last.rpartition(_MARK)
    closing = after.strip() if before else ""
    side_by_side = _CLOSED_CALL.search(closing) if reply.tool_calls else _CLOSED_ANSWER.match(closing)
    if side_by_side is not None:
        return side_by_side.group(1)
    following = SPECIAL.match(more[len(last) :].lstrip()) if more.startswith(last) else None
    return following.group() if following else ""
