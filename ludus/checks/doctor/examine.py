"""The examination of a chat template: what is appended after a reply, what forks, and why.

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
"""The day on which every template believes to be rendered: a date that changes is asked for by itself."""
_SPECIAL_TOKEN = re.compile(r"<[|｜][^<>\s]{1,40}>|<[^<>\s]{1,40}[|｜]>|<[a-z]+_of_[a-z]+>|</?s>")
"""Special tokens as nearly all models spell them, where no tokenizer lists them."""
ASSUMED_TOKENS: Mapping[str, str] = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "unk_token": "<|unk|>"}
"""Special tokens of a template that comes without a tokenizer."""


@dataclass(frozen=True, slots=True)
class Row:
    """All transitions of one kind."""

    kind: str
    verdict: Verdict
    counts: Mapping[str, int]
    """Those that are `exact`, `refused`, `broken`; of the exact ones those `respelled`, whose reply stays in another
    spelling than the template's; and those `assumed`, with a reply in them that no parser reads as it was meant."""
    forks: Mapping[Construct, int]
    appended: str
    """What is appended after the reply, with words in braces for the messages of others; '' if it always forks."""


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The smallest conversation found that forks for one construct."""

    construct: Construct
    reason: str
    """The reason that the record will give."""
    kind: str
    conversation: Conversation
    """Its last message, or messages, are those at which it forks."""
    messages: tuple[Message, ...]
    """The same as the agent sends it."""
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
    """What the template ends an answer with; '' if it shows none."""
    variables: tuple[str, ...]
    parser: str
    able: Abilities
    not_resumable: tuple[str, ...]
    reads_date: bool
    num_written_calls: int
    """Replies with calls that were written."""
    num_read_calls: int
    """Those that the parser reads as they were meant."""
    unread: WrittenReply | None
    """The first reply that it does not. None: it reads all."""
    transitions: tuple[Row, ...]
    forks: tuple[Counterexample, ...]
    refusals: Mapping[str, int]
    """The template's words, and how often it said them."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Transitions by what became of them: exact, each construct, refused, broken."""
        total: Counter[str] = Counter()
        for row in self.transitions:
            total.update({name: row.counts[name] for name in ("exact", "refused", "broken")})
            total.update(row.forks)
        return {name: count for name, count in total.items() if count}

    def is_exact(self, allowed: Sequence[str] = ()) -> bool:
        """Whether no transition is broken, and none forks but for the constructs or reasons that are `allowed`."""
        reasons = {proof.construct: proof.reason for proof in self.forks}
        found = {name for row in self.transitions for name in row.forks}
        is_sound = all(row.verdict != "broken" for row in self.transitions)
        return is_sound and all(name in allowed or reasons[name] in allowed for name in found)


def subject_of(text: ChatText, template_kwargs: Mapping[str, Any] = {}) -> Subject:
    """A model's chat text as it serves at run time, but that today stays today."""
    stops = [text.tokenizer.decode((token,)) for token in sorted(text.tokenizer.stop_ids)]
    template = ChatTemplate(text.template.source, text.template.special_tokens, now=lambda: _TODAY)
    special_texts = frozenset(text.tokenizer.special_ids)
    return Subject(template, ReplyWriter.of(template, stops), text.parser, special_texts, template_kwargs)


def subject_of_source(source: str, *, tool_parser: str = "auto", template_kwargs: Mapping[str, Any] = {}) -> Subject:
    """A template alone: special tokens get names of their own, and a reply ends with what the template closes it by."""
    template = ChatTemplate(source, ASSUMED_TOKENS, now=lambda: _TODAY)
    return Subject(
        template, ReplyWriter.of(template), parser_for(source, tool_parser), special_texts_of(source), template_kwargs
    )


def special_texts_of(source: str) -> frozenset[str]:
    """What in a template is spelled as special tokens are, and those that every template may name."""
    return frozenset(_SPECIAL_TOKEN.findall(source)) | set(ASSUMED_TOKENS.values())


def examine(
    subject: Subject,
    *,
    name: str,
    num_conversations: int = 1000,
    seed: int = 0,
    on_conversation: Callable[[int], None] = lambda _done: None,
) -> Examination:
    """What becomes of `num_conversations` random conversations under the subject's template.

    on_conversation: called with how many are done.
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
    """A question after midnight, for templates that show the date. None: yesterday's tokens are still right."""
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
    """Ends with the request that is judged."""
    construct: Construct | None
    """None: nothing forks."""


class _Findings:
    """All that happened, and the shortest example of everything."""

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
        """By kind, the most frequent first."""
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
        """One for each construct, shrunk."""
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
        assert construct is not None, "what is proved forks"
        if construct != "date":  # which needs another day, and is small as it is
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
        """What is appended at the end of `example`, where messages of others are their role in braces."""
        start = max(idx for idx, line in enumerate(example.said) if line.message.role == "assistant") + 1
        named = (
            replace(line, message=replace(line.message, content=f"{{{line.message.role}}}"))
            for line in example.said[start:]
        )
        steps = replay(self._subject, replace(example, said=(*example.said[:start], *named))).steps
        return steps[-1].added if steps else ""
