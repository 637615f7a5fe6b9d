"""Examines a chat template: what it appends after replies, which transitions fork, and why.

Knows: the parts of the doctor.  Knows not: terminals, how a template is found.
Invariant: the same seed gives the same findings.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from ludus.checks.doctor.abilities import probe
from ludus.checks.doctor.construct import Construct, Divergence, construct_of, divergence_of
from ludus.checks.doctor.conversation import Abilities, Conversation, PlannedMessage, random_conversation
from ludus.checks.doctor.replay import REASONS, Subject, Transition, WrittenReply, classify, replay
from ludus.checks.doctor.reply_writer import ReplyWriter
from ludus.checks.doctor.shrink import shrink
from ludus.checks.doctor.source import WatchedTemplate
from ludus.text.chat import ChatText
from ludus.text.parse import parser_for
from ludus.text.prefix_memo import num_same
from ludus.text.template import ChatTemplate
from ludus.types import Message

Verdict = Literal["exact", "forks", "depends", "refused", "broken"]

_OWN_NAMES = frozenset({"messages", "tools", "add_generation_prompt"})
_TODAY = datetime(2026, 1, 31)
"""The date for all renderings; a change of the date is tested separately."""
_SPECIAL_TOKEN = re.compile(r"<[|｜][^<>\s]{1,40}>|<[^<>\s]{1,40}[|｜]>|<[a-z]+_of_[a-z]+>|</?s>")
"""Special tokens in the usual forms, for templates without a tokenizer that lists them."""
ASSUMED_TOKENS: Mapping[str, str] = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "unk_token": "<|unk|>"}
"""Special tokens of a template that comes without a tokenizer."""


@dataclass(frozen=True, slots=True)
class Row:
    """All transitions of one kind."""

    kind: str
    verdict: Verdict
    counts: Mapping[str, int]
    """Numbers of `exact`, `refused` and `broken` transitions; of exact ones, `respelled`: the reply's JSON keeps a
    format other than the template's; and `assumed`: with a reply that the parser does not read as intended."""
    forks: Mapping[Construct, int]
    appended: str
    """The text appended after the reply, with roles in braces for messages of others; '' if it always forks."""


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The smallest conversation found that forks for one construct."""

    construct: Construct
    reason: str
    """The fork reason that is recorded."""
    kind: str
    conversation: Conversation
    """It forks at its last message or messages."""
    messages: tuple[Message, ...]
    """The same messages as the agent sends them."""
    divergence: Divergence


@dataclass(frozen=True, slots=True)
class Examination:
    """Everything that the doctor finds in a template."""

    name: str
    num_conversations: int
    seed: int
    generation_prompt: str
    stops: tuple[str, ...]
    closing: str
    """The text with which the template ends an answer; '' if it shows none."""
    variables: tuple[str, ...]
    parser: str
    able: Abilities
    not_resumable: tuple[str, ...]
    reads_date: bool
    num_written_calls: int
    """Number of replies with calls that were written."""
    num_read_calls: int
    """Number of those that the parser reads as intended."""
    unread: WrittenReply | None
    """The first reply that it does not. None: it reads all of them."""
    transitions: tuple[Row, ...]
    forks: tuple[Counterexample, ...]
    refusals: Mapping[str, int]
    """Numbers of refusals, by the template's message."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of transitions by outcome: exact, each construct, refused, broken."""
        total: Counter[str] = Counter()
        for row in self.transitions:
            total.update({name: row.counts[name] for name in ("exact", "refused", "broken")})
            total.update(row.forks)
        return {name: count for name, count in total.items() if count}

    def is_exact(self, allowed: Sequence[str] = ()) -> bool:
        """Whether no transition is broken, and all forks have a construct or reason in `allowed`."""
        reasons = {proof.construct: proof.reason for proof in self.forks}
        found = {name for row in self.transitions for name in row.forks}
        is_sound = all(row.verdict != "broken" for row in self.transitions)
        return is_sound and all(name in allowed or reasons[name] in allowed for name in found)


def subject_of(text: ChatText, template_kwargs: Mapping[str, Any] = {}) -> Subject:
    """A model's chat text as at run time, but with a fixed date."""
    stops = [text.tokenizer.decode((token,)) for token in sorted(text.tokenizer.stop_ids)]
    template = ChatTemplate(text.template.source, text.template.special_tokens, now=lambda: _TODAY)
    special_texts = frozenset(text.tokenizer.special_ids)
    return Subject(template, ReplyWriter.of(template, stops), text.parser, special_texts, template_kwargs)


def subject_of_source(source: str, *, tool_parser: str = "auto", template_kwargs: Mapping[str, Any] = {}) -> Subject:
    """A template without a model: special tokens get assumed names, and replies end with the template's closing
    token."""
    template = ChatTemplate(source, ASSUMED_TOKENS, now=lambda: _TODAY)
    return Subject(
        template, ReplyWriter.of(template), parser_for(source, tool_parser), special_texts_of(source), template_kwargs
    )


def special_texts_of(source: str) -> frozenset[str]:
    """Texts in a template that look like special tokens, and the assumed special tokens."""
    return frozenset(_SPECIAL_TOKEN.findall(source)) | set(ASSUMED_TOKENS.values())


def examine(
    subject: Subject,
    *,
    name: str,
    num_conversations: int = 1000,
    seed: int = 0,
    on_conversation: Callable[[int], None] = lambda _done: None,
) -> Examination:
    """The findings for `num_conversations` random conversations with the subject's template.

    on_conversation: called with the number of finished conversations.
    """
    able = probe(subject.template)
    findings = _Findings(subject)
    for number in range(num_conversations):
        findings.add(random_conversation(random.Random(f"{seed}/{number}"), able))
        on_conversation(number + 1)
    tomorrow = _next_day(subject)
    if tomorrow is not None:
        findings.judged.append(_Judged(tomorrow, _HELLO, "date"))
    unread = [written for written in findings.calling if written.is_assumed]
    bare = subject.template.render([_ASKED], generation_prompt=False, template_kwargs=subject.template_kwargs)
    prompt = subject.template.render([_ASKED], template_kwargs=subject.template_kwargs)
    return Examination(
        name=name,
        num_conversations=num_conversations,
        seed=seed,
        generation_prompt=prompt[num_same(bare, prompt) :],
        stops=subject.reply_writer.stops,
        closing=ReplyWriter.of(subject.template).answer_stop,
        variables=tuple(sorted(subject.template.variables - _OWN_NAMES - set(subject.template.special_tokens))),
        parser=subject.parser.name,
        able=able,
        not_resumable=subject.template.not_resumable,
        reads_date=tomorrow is not None,
        num_written_calls=len(findings.calling),
        num_read_calls=len(findings.calling) - len(unread),
        unread=unread[0] if unread else None,
        transitions=findings.rows(),
        forks=findings.counterexamples(),
        refusals=Counter(each.step.words for each in findings.judged if each.step.outcome == "refused"),
    )


_ASKED = Message("user", "U0")
_HELLO = Conversation(
    (), (PlannedMessage(_ASKED), PlannedMessage(Message("assistant", "A1")), PlannedMessage(Message("user", "U2")))
)


def _next_day(subject: Subject) -> Transition | None:
    """A transition to the next day, for templates that show the date. None: it does not fork."""
    steps = replay(subject, _HELLO).steps if "strftime_now" in subject.template.source else []
    if not steps:
        return None
    template = ChatTemplate(
        subject.template.source, subject.template.special_tokens, now=lambda: _TODAY + timedelta(days=1)
    )
    later = replace(subject, template=template)
    rendered = template.extend(None, steps[0].messages, template_kwargs=subject.template_kwargs)
    if steps[0].outcome != "exact" or rendered.text == steps[0].shown:
        return None
    step = classify(later, replace(steps[0].turn, shown=None), steps[0].messages, rendered)
    return None if step.outcome == "exact" else replace(step, kind=f"{step.kind}, next day")


def _verdict(counts: Mapping[str, int], forks: Mapping[Construct, int]) -> Verdict:
    if counts["broken"]:
        return "broken"
    if forks:
        return "depends" if counts["exact"] else "forks"
    return "exact" if counts["exact"] else "refused"


@dataclass(frozen=True, slots=True)
class _Judged:
    step: Transition
    conversation: Conversation
    """Ends with the request that is examined."""
    construct: Construct | None
    """None: it does not fork."""


class _Findings:
    """All outcomes, with the shortest example of each."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.judged: list[_Judged] = []
        self.calling: list[WrittenReply] = []
        """The replies with calls."""

    def add(self, conversation: Conversation) -> None:
        replayed = replay(self._subject, conversation)
        self.calling += [written for written in replayed.written if written.meant.tool_calls]
        for step in replayed.steps:
            construct = construct_of(step, self._subject) if step.outcome in REASONS else None
            until = replace(conversation, said=conversation.said[: len(step.messages)])
            self.judged.append(_Judged(step, until, construct))

    def rows(self) -> tuple[Row, ...]:
        """The rows by kind, the most frequent first."""
        kinds: dict[str, list[_Judged]] = {}
        for each in self.judged:
            kinds.setdefault(each.step.kind, []).append(each)
        return tuple(self._row(kind, judged) for kind, judged in sorted(kinds.items(), key=lambda item: -len(item[1])))

    def _row(self, kind: str, judged: Sequence[_Judged]) -> Row:
        forks = Counter(each.construct for each in judged if each.construct is not None)
        kept = [each for each in judged if each.construct is None]
        counts = Counter[str](each.step.outcome for each in kept)
        counts["respelled"] = sum(each.step.keeps_spelling for each in kept)
        counts["assumed"] = sum(each.step.is_assumed for each in judged)
        shown = [each.conversation for each in kept if each.step.outcome != "refused"]
        example = min(shown, key=lambda each: len(each.said), default=None)
        return Row(
            kind,
            _verdict(counts, forks),
            {name: counts[name] for name in ("exact", "respelled", "refused", "broken", "assumed")},
            dict(forks.most_common()),
            "" if example is None else self._appended(example),
        )

    def counterexamples(self) -> tuple[Counterexample, ...]:
        """A minimal example for each construct."""
        template = self._subject.template
        shortest: dict[Construct, _Judged] = {}
        for each in sorted(self.judged, key=lambda each: len(each.step.messages)):
            if each.construct is not None:
                shortest.setdefault(each.construct, each)
        if not shortest:
            return ()
        watched = WatchedTemplate(template.environment, template.source)
        return tuple(self._prove(watched, each) for _, each in sorted(shortest.items()))

    def _prove(self, watched: WatchedTemplate, found: _Judged) -> Counterexample:
        step, conversation, construct = found.step, found.conversation, found.construct
        assert construct is not None, "a counterexample must fork"
        if construct != "date":  # needs another day, and is already minimal
            conversation = shrink(conversation, lambda smaller: self._last(smaller, construct) is not None)
            step = self._last(conversation, construct) or step
        divergence = divergence_of(step, self._subject, watched)
        return Counterexample(construct, step.outcome, step.kind, conversation, step.messages, divergence)

    def _last(self, conversation: Conversation, construct: Construct) -> Transition | None:
        """The last transition, if it forks for `construct`."""
        steps = replay(self._subject, conversation).steps
        num_replies = sum(line.message.role == "assistant" for line in conversation.said)
        if not steps or steps[-1].outcome not in REASONS or len(steps) != num_replies:
            return None
        return steps[-1] if construct_of(steps[-1], self._subject) == construct else None

    def _appended(self, example: Conversation) -> str:
        """The text appended at the end of `example`, with roles in braces for messages of others."""
        start = max(idx for idx, line in enumerate(example.said) if line.message.role == "assistant") + 1
        named = (
            replace(line, message=replace(line.message, content=f"{{{line.message.role}}}"))
            for line in example.said[start:]
        )
        steps = replay(self._subject, replace(example, said=(*example.said[:start], *named))).steps
        return steps[-1].added if steps else ""
