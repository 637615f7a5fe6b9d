"""Finds the cause of a fork in a template: the construct by name, the position in the text, the tag in the source.

Knows: two renderings and their difference.  Knows not: whether that is a fork, which `continuation` decides.
Invariant: a construct is found by experiment: if the difference disappears without the tools, the tools are the cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ludus.checks.doctor.replay import Subject, Transition, squeezed
from ludus.checks.doctor.source import Tag, WatchedTemplate, Writing
from ludus.errors import AgentError
from ludus.text.parsers.tags import THINK_OPEN
from ludus.text.prefix_memo import num_same
from ludus.types import Message, ToolSpec

Construct = Literal[
    "reasoning_stripped",
    "thinking_added",
    "calls_dropped",
    "content_dropped",
    "content_rewritten",
    "reply_split",
    "tools_moved",
    "system_moved",
    "whitespace",
    "position",
    "date",
]

EXPLANATIONS: dict[Construct, str] = {
    "reasoning_stripped": "thinking that the model has seen is no longer shown",
    "thinking_added": "a reply without thinking is shown with an empty thinking block",
    "calls_dropped": "a call that the model made is not shown",
    "content_dropped": "text that the model wrote is not shown",
    "content_rewritten": "text that the model wrote is shown with other words",
    "reply_split": "the reply is not shown in one piece, ended as the model ended it",
    "tools_moved": "the tools are shown in another place once there are new messages",
    "system_moved": "system messages are merged, so a new one changes the first text",
    "whitespace": "blanks or line breaks between messages depend on what follows",
    "position": "earlier text depends on its place among the messages",
    "date": "the date in the prompt is another one on the next day",
}

_CONTEXT_CHARS = 40
"""Characters shown before the difference; twice as many are shown after it."""


_SAME_CHARS = 20
"""If this many characters after a piece of text are equal, only that piece is missing."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference of two texts."""

    before: str
    """The end of the common part."""
    seen: str
    """The continuation in what the model saw and sampled."""
    shown: str
    """The continuation in what the template shows now."""
    tag: Tag | None
    """The tag that causes it. None: it is text outside of tags."""


def construct_of(step: Transition, subject: Subject) -> Construct:
    """The construct that makes `step` fork."""
    if step.outcome == "reasoning_stripped":
        return "reasoning_stripped"
    prompt = step.turn.prompt_text
    if step.shown.startswith(prompt):
        return _in_reply(step, squeezed(step.shown[len(prompt) :]))
    if _differs(subject, step):
        if not _differs(subject, step, tools=()):
            return "tools_moved"
        if not _differs(subject, step, with_system=False):
            return "system_moved"
    return "whitespace" if squeezed(step.shown).startswith(squeezed(prompt)) else "position"


def divergence_of(step: Transition, subject: Subject, watched: WatchedTemplate) -> Divergence:
    """The first difference between what the model saw and what the template, `watched`, shows now."""
    at = num_same(step.seen, step.shown)
    start, end = max(0, at - _CONTEXT_CHARS), at + 2 * _CONTEXT_CHARS
    tag = _tag_at(step, subject, watched, at)
    return Divergence(step.shown[start:at], step.seen[at:end], step.shown[at:end], tag)


def _in_reply(step: Transition, shown: str) -> Construct:
    """The construct, if the fork is in the reply. shown: the text after the prompt, without whitespace."""
    reply = step.turn.reply
    if any(squeezed(call.name) not in shown for call in reply.tool_calls):
        return "calls_dropped"
    if reply.reasoning is None and shown.startswith(THINK_OPEN):
        return "thinking_added"
    content = squeezed(reply.content or "")
    if content not in shown:
        return "content_dropped" if reply.tool_calls else "content_rewritten"
    return "reply_split"


def _differs(
    subject: Subject, step: Transition, *, tools: Sequence[ToolSpec] | None = None, with_system: bool = True
) -> bool:
    """Whether the earlier messages would still be shown differently without the tools, or without system messages."""
    used = step.turn.tools if tools is None else tools
    before, after = _without(step.turn.messages, with_system), _without(step.messages, with_system)
    template, template_kwargs = subject.template, subject.template_kwargs
    try:
        old = template.render(before, used, generation_prompt=False, template_kwargs=template_kwargs)
        new = template.render(after, used, template_kwargs=template_kwargs)
    except AgentError:
        return True
    return not new.startswith(old)


def _without(messages: Sequence[Message], with_system: bool) -> list[Message]:
    return [message for message in messages if with_system or message.role not in ("system", "developer")]


def _tag_at(step: Transition, subject: Subject, watched: WatchedTemplate, at: int) -> Tag | None:
    """The tag that changes character `at`: compared with the reply as last message, or with the prompt."""
    template, turn = subject.template, step.turn

    def write(messages: Sequence[Message], *, generation_prompt: bool) -> Writing:
        return watched.render(
            template.values(
                messages, turn.tools, generation_prompt=generation_prompt, template_kwargs=subject.template_kwargs
            )
        )

    now = write(step.messages, generation_prompt=True)
    for then in (
        write([*turn.messages, turn.reply], generation_prompt=False),
        write(turn.messages, generation_prompt=True),
    ):
        if at < len(then.text) and then.text[: at + 1] == step.seen[: at + 1]:
            end = then.end_of_piece(at)
            is_gone = then.text[end : end + _SAME_CHARS] == now.text[at : at + min(_SAME_CHARS, len(then.text) - end)]
            return watched.decider(then.line_at(at), now.line_at(at), is_gone=is_gone and end < len(then.text))
    return watched.tag(now.line_at(at))
