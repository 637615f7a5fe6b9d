"""Finds the text to append to the sampled tokens for the next prompt of a conversation, or why that is impossible.

Knows: a chat template as a function from messages to text.  Knows not: tokens, engines, the session's graph.
Invariant: text is returned only with a proof that the template still shows the earlier prompt and the earlier reply.

What the template shows now, and where its parts come from (M: the new messages, M[n] the client's copy of the reply):

    render(M)            prompt_text │ body of the reply      │ closing  new messages  generation prompt
    with a mark in M[n]  prompt_text │ lead  MARK             │ closing  new messages  generation prompt
    the engine sees      prompt_text │ reply_text as sampled  │ the rest of the line above, less what was sampled of it

Both renderings must begin with `prompt_text` and have the same end; the body must show the reply's thinking, content
and calls. Whitespace and the JSON of calls may differ from what was sampled: the sampled text is kept. If a reply ended
by itself and is shown exactly as it was sampled, with its end, the rendering with a mark is not needed.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from ludus.errors import AgentError
from ludus.text.form import json_or_text
from ludus.text.parse import opens_reasoning
from ludus.text.parsers.tags import THINK_CLOSE, THINK_OPEN
from ludus.text.template import ChatTemplate, Rendered, Shown
from ludus.types import ForkReason, Message, ToolCall, ToolSpec

_REASONS: Mapping[str, ForkReason] = {reason: reason for reason in get_args(ForkReason)}
_THINKING = re.compile(f"{THINK_OPEN}.*?(?:{THINK_CLOSE}|$)", re.DOTALL)


@dataclass(frozen=True)
class RenderedTurn:
    """An earlier turn as text."""

    messages: Sequence[Message]
    tools: Sequence[ToolSpec]
    template_kwargs: Mapping[str, Any]
    prompt_text: str
    """The rendering of `messages` when the turn was requested, generation prompt included."""
    reply: Message
    reply_text: str
    """The exact text of the sampled tokens, special tokens included."""
    shown: Shown | None = None
    """Where the rendering of the prompt can be resumed. None: all messages are rendered."""

    @property
    def prompt(self) -> Rendered:
        return Rendered(self.messages, self.prompt_text, self.shown)


def continuation(
    template: ChatTemplate,
    earlier: RenderedTurn,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    template_kwargs: Mapping[str, Any],
    stop_texts: Collection[str],
    shown_now: Rendered | None = None,
) -> str | ForkReason:
    """The text to append after the sampled tokens of `earlier`, or why a new path must start.

    shown_now: the rendering of `messages`. None: it is rendered here.
    stop_texts: texts of the tokens that may have ended the reply. After a reply that ends with one of them comes what
    follows it in the template; after any other reply (cut by length or by the caller's stop) the whole closing text.

    'edit': messages, tools or template arguments of the earlier turn were changed.  'truncated': some were dropped.
    'reasoning_stripped': thinking that the model saw is no longer shown.  'template': the template now shows earlier
    text differently (because of its position, or the date), or shows the reply differently than it was sampled.
    Raises AgentError when the template refuses `messages`.
    """
    if (changed := _changed(earlier, messages)) is not None:
        return changed
    same_request = tuple(tools) == tuple(earlier.tools) and dict(template_kwargs) == dict(earlier.template_kwargs)
    view = _View(template, earlier.prompt, messages, tools, template_kwargs)
    shown = view.render(view.echo) if shown_now is None else shown_now.text
    if not shown.startswith(earlier.prompt_text):
        return _why_prompt_changed(earlier, shown) if same_request else "edit"
    said = earlier.prompt_text + earlier.reply_text
    if shown.startswith(said) and earlier.reply_text.endswith(tuple(filter(None, stop_texts))):
        return shown[len(said) :]  # character by character what the model has seen, sampled and ended: proof enough
    why: ForkReason = "template"
    for tail in view.tails(shown, earlier.prompt_text, stop_texts):
        body = shown[len(earlier.prompt_text) : len(shown) - len(tail)]
        added = _appended(earlier, view, body, tail, stop_texts)
        if added not in _REASONS:
            return added
        why = _REASONS[added]
    return why


# Messages: is this still the same conversation?


def _changed(earlier: RenderedTurn, messages: Sequence[Message]) -> ForkReason | None:
    """Why `messages` do not begin with the earlier messages and the reply. None: they do."""
    num_before = len(earlier.messages)
    if tuple(messages[:num_before]) == tuple(earlier.messages):  # without a look at each message
        if len(messages) == num_before:
            return "truncated"
        if _is_same(earlier.reply, messages[num_before]):
            return None
    history = [*earlier.messages, earlier.reply]
    pairs = enumerate(zip(history, messages, strict=False))
    num_same = next((idx for idx, pair in pairs if not _is_same(*pair)), min(len(history), len(messages)))
    if num_same == len(history):
        return None
    if len(messages) < len(history) or _resumes_sooner(history, messages, num_same):
        return "truncated"
    return "edit"


def _resumes_sooner(history: Sequence[Message], messages: Sequence[Message], start: int) -> bool:
    """Whether, after the first difference, a message of the history comes earlier than it did: some were left out."""
    later = range(start + 1, len(history))
    return any(_is_same(history[old_idx], new) for old_idx in later for new in messages[start:old_idx])


def _is_same(old: Message, new: Message) -> bool:
    """Equal in what both sides say; ids of calls and dropped reasoning do not count, the rendering judges the rest."""
    if old == new:
        return True
    return (
        old.role == new.role
        and (old.content or "") == (new.content or "")
        and old.name == new.name
        and (new.reasoning is None or old.reasoning is None or old.reasoning == new.reasoning)
        and len(old.tool_calls) == len(new.tool_calls)
        and all(map(_is_same_call, old.tool_calls, new.tool_calls))
    )


def _is_same_call(old: ToolCall, new: ToolCall) -> bool:
    return old.name == new.name and json_or_text(old.arguments) == json_or_text(new.arguments)


# Text: what does the template show of it?


@dataclass(frozen=True)
class _View:
    """The new messages as the template shows them, with the echo of the reply exchangeable."""

    template: ChatTemplate
    earlier: Rendered
    messages: Sequence[Message]
    tools: Sequence[ToolSpec]
    template_kwargs: Mapping[str, Any]
    generation_prompt: bool = True

    @property
    def echo_idx(self) -> int:
        return len(self.earlier.messages)

    @property
    def echo(self) -> Message:
        return self.messages[self.echo_idx]

    def render(self, echo: Message) -> str:
        messages = [*self.messages[: self.echo_idx], echo, *self.messages[self.echo_idx + 1 :]]
        return self.template.extend(
            self.earlier,
            messages,
            self.tools,
            generation_prompt=self.generation_prompt,
            template_kwargs=self.template_kwargs,
        ).text

    def tails(self, shown: str, prompt_text: str, stop_texts: Collection[str]) -> Iterator[str]:
        """What may be the end of `shown` after the body of the reply; nothing if the template hides it."""
        mark = _unused_word(shown)
        tail = self._after_mark(replace(self.echo, content=mark, tool_calls=()), mark, prompt_text)
        if tail is not None and _fits(shown, prompt_text, tail):
            yield tail
        if self.echo.tool_calls:
            tail = self._tail_of_calls(shown, prompt_text, stop_texts)
            if tail is not None:
                yield tail

    def _tail_of_calls(self, shown: str, prompt_text: str, stop_texts: Collection[str]) -> str | None:
        """The same for templates that close a message with calls in another way, or accept no other one there.

        The mark then stands in the last call's arguments, and a stop text has to tell the call from the closing. It
        must be the message's own: rendered as the last message, the text up to the stop text is the same.
        """
        mark = _unused_word(shown)
        *others, last = self.echo.tool_calls
        echo = replace(self.echo, tool_calls=(*others, replace(last, arguments=json.dumps({mark: mark}))))
        after = self._after_mark(echo, mark, prompt_text)
        alone = replace(self, messages=self.messages[: self.echo_idx + 1], generation_prompt=False)
        own = alone._after_mark(echo, mark, prompt_text)
        if after is None or own is None:
            return None
        closings = [(at, stop) for stop in stop_texts if stop and (at := own.find(stop)) >= 0]
        if not closings:
            return None
        at, stop = min(closings)
        tail = after[at:]
        return tail if after.startswith(own[: at + len(stop)]) and _fits(shown, prompt_text, tail) else None

    def ends_before_later_messages(self) -> bool:
        """Whether nothing that was said after the reply is shown inside it, as results between calls and text would be.

        Without calls the body is the content alone, and holds nothing else.
        """
        later = self.messages[self.echo_idx + 1 :]
        if not self.echo.tool_calls or not later:
            return True
        word = _unused_word("".join(message.content or "" for message in self.messages))
        marked = replace(
            self,
            messages=(*self.messages[: self.echo_idx + 1], *(replace(message, content=word) for message in later)),
        )
        alone = replace(self.echo, content="", tool_calls=())
        try:
            return marked.render(self.echo).count(word) <= marked.render(alone).count(word)
        except AgentError:
            return True  # such messages only follow calls, and `_tail_of_calls` has looked at what stands between

    def _after_mark(self, echo: Message, mark: str, prompt_text: str) -> str | None:
        try:
            marked = self.render(echo)
        except AgentError:
            return None
        before, found, after = marked.rpartition(mark)
        return after if found and before.startswith(prompt_text) else None


def _unused_word(text: str) -> str:
    """A word that `text` does not contain, and that no template trims or quotes."""
    return next(word for number in itertools.count() if (word := f"ludusmark{number}x") not in text)


def _fits(shown: str, prompt_text: str, tail: str) -> bool:
    return shown.endswith(tail) and len(prompt_text) + len(tail) <= len(shown)


def _why_prompt_changed(earlier: RenderedTurn, shown: str) -> ForkReason:
    """Thinking, if the two agree but for thinking blocks and blanks or a thought has gone; else the template."""
    before, now = _squeezed(earlier.prompt_text), _squeezed(shown)
    said = earlier.prompt_text
    if opens_reasoning(said):
        said = said.rstrip().removesuffix(THINK_OPEN)
    if now.startswith(before) and not shown.startswith(said):
        return "template"  # blanks differ, and not those of a thinking block that the prompt opened
    if _squeezed(_THINKING.sub("", shown)).startswith(_squeezed(_THINKING.sub("", earlier.prompt_text))):
        return "reasoning_stripped"
    thoughts = {_squeezed(message.reasoning) for message in earlier.messages if message.reasoning}
    has_gone = any(now.count(thought) < before.count(thought) for thought in thoughts)
    return "reasoning_stripped" if has_gone else "template"


def _squeezed(text: str) -> str:
    return "".join(text.split())


# The reply: is what the template shows of it what was sampled?


def _appended(
    earlier: RenderedTurn, view: _View, body: str, tail: str, stop_texts: Collection[str]
) -> str | ForkReason:
    """The addition, if the body is the reply as it was sampled, or shows its thinking, content and calls."""
    stop = max((stop for stop in stop_texts if stop and earlier.reply_text.endswith(stop)), key=len, default="")
    rest, reasoning = _squeezed(body), earlier.reply.reasoning
    sampled, closing = _squeezed(earlier.reply_text.removesuffix(stop)), tail.lstrip()
    ended_at = closing.find(stop) if stop else -1
    if ended_at > 0 and rest + _squeezed(closing[:ended_at]) == sampled:
        return closing[ended_at + len(stop) :]  # more of the closing than the stop token was sampled
    if rest != sampled:
        if reasoning is not None:
            after = _after_thinking(rest, reasoning, earlier)
            if after is None:
                return "template" if _squeezed(reasoning) and _squeezed(reasoning) in rest else "reasoning_stripped"
            rest = after
        if not _shows(rest, view.echo) or not view.ends_before_later_messages():
            return "template"
    if reasoning is not None and THINK_CLOSE not in earlier.reply_text and THINK_CLOSE in body:
        # A stop token inside the thinking: what the template puts before it cannot be put there any more.
        return "template" if stop else _rest_of_thinking(body, earlier.reply_text) + tail
    return closing[len(stop) :] if ended_at == 0 else tail


def _after_thinking(rest: str, reasoning: str, earlier: RenderedTurn) -> str | None:
    """What the body, without blanks, shows behind the thinking. None: it does not begin with it.

    Thinking in other marks than the usual tags must stand behind the same marks as in what was sampled.
    """
    thought, sampled = _squeezed(reasoning), _squeezed(earlier.reply_text)
    opened = "" if opens_reasoning(earlier.prompt_text) else THINK_OPEN
    usual = opened + thought + THINK_CLOSE
    if rest.startswith(usual):
        return rest[len(usual) :]
    if not thought or THINK_OPEN in sampled or opened == "":
        return None
    lead = sampled[: sampled.find(thought) + len(thought)]
    return rest[len(lead) :] if thought in sampled and rest.startswith(lead) else None


def _shows(squeezed_body: str, echo: Message) -> bool:
    """Whether the body, without thinking and blanks, is the content, or the content with every call by name."""
    content = _squeezed(echo.content or "")
    if not echo.tool_calls:
        return squeezed_body == content
    at = squeezed_body.find(content) if content else 0
    if at < 0:
        return False
    calls = squeezed_body[:at] + squeezed_body[at + len(content) :]
    at = 0
    for call in echo.tool_calls:
        if (at := calls.find(_squeezed(call.name), at)) < 0:
            return False
        at += len(_squeezed(call.name))
    return True


def _rest_of_thinking(body: str, reply_text: str) -> str:
    """How the template ends a thinking block that the model did not."""
    cut = len(body[: body.rindex(THINK_CLOSE)].rstrip())
    return body[cut:].lstrip() if reply_text[-1:].isspace() else body[cut:]
