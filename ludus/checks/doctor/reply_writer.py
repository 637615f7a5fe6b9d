"""How a model writes its replies, learnt from its template: the text that it samples for what it means.

Knows: what the template makes of a last message.  Knows not: parsers, forks.
Invariant: a reply is written as the template shows it, because that is what the model was trained to write; thinking
that the template never shows is written inside the thinking tags.
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
"""A special token as models spell them, `</s>` included; but no closing tag of an element."""
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
    """What the model ends an answer with; '' if neither template nor tokenizer shows it."""
    call_stop: str
    """What it ends a reply with that calls tools."""

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
        """What the model can write of the reply that `asked` means, and the text sampled for it, stop token included.

        A prompt that has begun to think, or has thought, decides for the model; so does a template without a way to
        write thinking. Raises AgentError where the template refuses such a reply.
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
        """A reply whose thinking the template does not show, with the thinking between its tags."""
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
        """What the template shows behind the prompt, of which a thinking tag may be missing."""
        begun = (
            asked.prompt_text.rstrip().removesuffix(THINK_OPEN)
            if opens_reasoning(asked.prompt_text)
            else asked.prompt_text
        )
        for opening in (asked.prompt_text, begun):
            if shown.startswith(opening):
                return shown[len(opening) :]
        # Earlier text has changed: the reply begins behind the last generation prompt.
        bare = self.template.render(
            asked.messages, asked.tools, generation_prompt=False, template_kwargs=asked.template_kwargs
        )
        asking = begun[num_same(bare, begun) :]
        at = shown.find(asking, num_same(shown, begun)) if asking else -1
        return shown[at + len(asking) :] if at >= 0 else shown[num_same(shown, begun) :]

    @staticmethod
    def _ended(text: str, stop: str) -> str:
        """`text` up to the stop token, which is missing or has only other special tokens behind it."""
        at = text.rfind(stop) if stop else -1
        if at >= 0 and not SPECIAL.sub("", text[at + len(stop) :]).strip():
            return text[: at + len(stop)]
        return text + stop


def has_thinking_tags(template: ChatTemplate) -> bool:
    """Whether the model thinks between the usual tags."""
    return THINK_OPEN in template.source or THINK_CLOSE in template.source


def _stop_after(template: ChatTemplate, reply: Message, tools: Sequence[ToolSpec], then: Message) -> str:
    """The special token that closes `reply` where it is the last message, else the one that `then` begins with."""
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
