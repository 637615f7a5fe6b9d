"""Replays a conversation as the recorder sees it: writes, parses and sends back each reply, and classifies each prompt.

Knows: `continuation`, the function used at run time.  Knows not: the causes in a template.
Invariant: a transition that is exact here is appended at run time, and one that forks here forks there, for the same
reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from ludus.checks.doctor.conversation import Conversation, PlannedMessage
from ludus.checks.doctor.reply_writer import SPECIAL, ReplyWriter
from ludus.errors import AgentError
from ludus.text.incremental import RenderedTurn, continuation
from ludus.text.parse import opens_reasoning
from ludus.text.parsers.base import ToolParser, call_id
from ludus.text.parsers.tags import THINK_CLOSE
from ludus.text.template import ChatTemplate, Rendered
from ludus.types import ForkReason, Message, ToolCall

Outcome = Literal["exact", "broken", "refused"] | ForkReason

_WHOLE = re.compile(rf"{SPECIAL.pattern}|{THINK_CLOSE}")
REASONS: frozenset[str] = frozenset(get_args(ForkReason))


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of an examination: a template, how its model writes replies, and their parser."""

    template: ChatTemplate
    reply_writer: ReplyWriter
    parser: ToolParser
    special_texts: frozenset[str]
    """Texts of the special tokens, of which a parser sees only its markers."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stop_texts(self) -> frozenset[str]:
        return frozenset(self.reply_writer.stops)


@dataclass(frozen=True, slots=True)
class Transition:
    """A request that follows a reply, and how it relates to the earlier tokens."""

    kind: str
    """Such as 'tool result after call'."""
    outcome: Outcome
    """'exact': text is appended.  'broken': the appended text is not what the template shows.  'refused': the template
    refuses the messages."""
    turn: RenderedTurn
    """The earlier request and its reply."""
    messages: tuple[Message, ...]
    shown: str = ""
    """The rendering of `messages`; '' if the template refuses them."""
    added: str = ""
    """Text appended to the reply; '' if there is none."""
    is_assumed: bool = False
    """Whether some reply so far was taken as intended, because the parser reads it differently."""
    words: str = ""
    """Message of the template's refusal."""

    @property
    def seen(self) -> str:
        """The text that the model saw and sampled before."""
        return self.turn.prompt_text + self.turn.reply_text

    @property
    def keeps_spelling(self) -> bool:
        """Whether the reply keeps a JSON format other than the template's."""
        return self.outcome == "exact" and self.seen + self.added != self.shown


@dataclass(frozen=True, slots=True)
class WrittenReply:
    """A reply as text, and as read by the parser."""

    meant: Message
    text: str
    """Without the stop token."""
    read: Message
    is_assumed: bool
    """Whether the parser reads something other than intended."""


@dataclass(slots=True)
class ReplayResult:
    """The result for one conversation."""

    steps: list[Transition] = field(default_factory=list)
    written: list[WrittenReply] = field(default_factory=list)

    @property
    def is_assumed(self) -> bool:
        return any(written.is_assumed for written in self.written)


def replay(subject: Subject, conversation: Conversation) -> ReplayResult:
    """Every reply and every transition of `conversation`, up to the first request that the template refuses."""
    replayed = ReplayResult()
    messages: list[Message] = []
    turn: RenderedTurn | None = None
    for others, reply in _turns(conversation.said):
        messages += _answering(others, messages)
        try:
            earlier, known = None if turn is None else turn.prompt, subject.template_kwargs
            rendered = subject.template.extend(earlier, tuple(messages), conversation.tools, template_kwargs=known)
        except AgentError as error:
            if turn is not None:
                step = Transition(_kind(turn, messages, subject), "refused", turn, tuple(messages), words=str(error))
                replayed.steps.append(replace(step, is_assumed=replayed.is_assumed))
            break
        if turn is not None:
            replayed.steps.append(classify(subject, turn, tuple(messages), rendered, is_assumed=replayed.is_assumed))
        if reply is None:
            break
        try:
            turn = _sample(subject, replayed, conversation, rendered, reply)
        except AgentError:
            break
        messages.append(turn.reply)
    return replayed


def _turns(said: Sequence[PlannedMessage]) -> Iterator[tuple[list[Message], PlannedMessage | None]]:
    """Messages of others, each with the following reply; the last have none."""
    others: list[Message] = []
    for line in said:
        if line.message.role == "assistant":
            yield others, line
            others = []
        else:
            others.append(line.message)
    yield others, None


def _answering(others: Sequence[Message], messages: Sequence[Message]) -> list[Message]:
    """`others`, with results given the ids of the calls that they answer."""
    calls = iter(messages[-1].tool_calls if messages else ())
    return [
        replace(message, tool_call_id=next(calls, ToolCall("call00000", "", "")).id)
        if message.role == "tool"
        else message
        for message in others
    ]


def _sample(
    subject: Subject, replayed: ReplayResult, conversation: Conversation, rendered: Rendered, said: PlannedMessage
) -> RenderedTurn:
    """The turn in which the model answers `said`. Raises AgentError if the template refuses it."""
    prompt = (rendered.messages, conversation.tools, subject.template_kwargs, rendered.text)
    asked = RenderedTurn(*prompt, said.message, reply_text="", shown=rendered.shown)
    meant, written = subject.reply_writer.write(asked)
    if said.is_respelled:
        written = _respelled(written, meant)
    text = written.removesuffix(_stop_of(written, subject))
    read = _read(subject, conversation, rendered.text, meant, text)
    if said.cut is not None and not read.is_assumed:
        written = text = _cut(text, said.cut) or written
        read = _read(subject, conversation, rendered.text, None, text.removesuffix(_stop_of(text, subject)))
    replayed.written.append(read)
    return replace(asked, reply=read.read, reply_text=written)


def _cut(text: str, share: float) -> str:
    """The first part of `text`, without splitting a special token, as an engine returns whole tokens."""
    at = max(1, int(len(text) * share))
    ends = [token.end() for token in _WHOLE.finditer(text) if token.start() < at < token.end()]
    return text[: max([at, *ends])]


def _stop_of(written: str, subject: Subject) -> str:
    return max((stop for stop in subject.stop_texts if written.endswith(stop)), key=len, default="")


def _read(subject: Subject, conversation: Conversation, prompt: str, meant: Message | None, text: str) -> WrittenReply:
    """The reply that the parser reads in `text`; the intended one if it leaves calls or special tokens unparsed.

    meant: None: the text was cut, so the parser's reading is taken.
    """
    parser = subject.parser if conversation.tools else subject.parser.plain
    visible = text
    for special in subject.special_texts.difference(parser.markers):
        visible = visible.replace(special, "")
    tools, in_reasoning = conversation.tools, opens_reasoning(prompt)
    read = parser.parse(visible, in_reasoning=in_reasoning, call_seed=str(len(prompt)), tools=tools).message
    is_known = meant is not None and not meant.tool_calls and SPECIAL.search(text) is None
    if meant is None or is_known or _says_same(read, meant):
        return WrittenReply(read, text, read, is_assumed=False)
    calls = [replace(call, id=call_id(str(len(prompt)), idx)) for idx, call in enumerate(meant.tool_calls)]
    meant = replace(meant, tool_calls=tuple(calls))
    return WrittenReply(meant, text, meant, is_assumed=True)


def _says_same(read: Message, meant: Message) -> bool:
    """Whether both are equal except for whitespace, which templates trim, and for ids and JSON format of calls."""
    return (
        squeezed(read.content) == squeezed(meant.content)
        and squeezed(read.reasoning) == squeezed(meant.reasoning)
        and [(call.name, _value(call)) for call in read.tool_calls]
        == [(call.name, _value(call)) for call in meant.tool_calls]
    )


def squeezed(text: str | None) -> str:
    """The text without whitespace."""
    return "".join((text or "").split())


def _value(call: ToolCall) -> object:
    try:
        value: object = json.loads(call.arguments)
    except ValueError:
        return call.arguments
    return value


def _respelled(written: str, meant: Message) -> str:
    """The text with the JSON of calls compact and in ASCII, if the template uses the usual format."""
    for call in meant.tool_calls:
        value = json.loads(call.arguments)
        compact = json.dumps(value, separators=(",", ":"))
        written = written.replace(json.dumps(value, ensure_ascii=False), compact, 1)
    return written


def classify(
    subject: Subject, turn: RenderedTurn, messages: tuple[Message, ...], rendered: Rendered, *, is_assumed: bool = False
) -> Transition:
    """Classify the transition from `turn` to the request `messages`, rendered as `rendered`."""
    added = continuation(
        subject.template, turn, messages, turn.tools, subject.template_kwargs, subject.stop_texts, rendered
    )
    kind = _kind(turn, messages, subject)
    step = Transition(kind, "exact", turn, messages, rendered.text, is_assumed=is_assumed)
    if added in REASONS:
        return replace(step, outcome=next(reason for reason in get_args(ForkReason) if reason == added))
    step = replace(step, added=added)
    return step if _holds(step, subject) else replace(step, outcome="broken")


def _holds(step: Transition, subject: Subject) -> bool:
    """Whether an addition is correct: the rendering is the prompt, the ended reply, and the addition."""
    prompt, reply = step.turn.prompt_text, step.turn.reply_text
    if not (step.shown.startswith(prompt) and step.shown.endswith(step.added)):
        return False
    between = step.shown[len(prompt) : len(step.shown) - len(step.added)]
    stop = _stop_of(reply, subject)
    return not stop or stop not in between or between.endswith(stop)


def _kind(turn: RenderedTurn, messages: Sequence[Message], subject: Subject) -> str:
    roles = dict.fromkeys(message.role for message in messages[len(turn.messages) + 1 :])
    new = " and ".join("tool result" if role == "tool" else role for role in roles) or "nothing"
    num_calls = len(turn.reply.tool_calls)
    reply = "answer" if not num_calls else "call" if num_calls == 1 else "parallel calls"
    thinking = "thinking and " if turn.reply.reasoning is not None else ""
    is_cut = bool(subject.stop_texts) and not _stop_of(turn.reply_text, subject)
    return f"{new} after {'cut ' if is_cut else ''}{thinking}{reply}"
