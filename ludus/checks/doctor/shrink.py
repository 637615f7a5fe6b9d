"""Shrinks a conversation to a minimal one with the same property.

Knows: how conversations can be made smaller.  Knows not: the property.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

from ludus.checks.doctor.conversation import Conversation, PlannedMessage

_MOST_REMOVED = 4
"""Largest number of messages removed at once: a question, its call, the result and the answer."""


def shrink(conversation: Conversation, still_shows: Callable[[Conversation], bool]) -> Conversation:
    """A conversation for which `still_shows` holds, and from which nothing more can be removed."""
    while True:
        smaller = next(filter(still_shows, filter(_is_led, _smaller(conversation))), None)
        if smaller is None:
            return conversation
        conversation = smaller


def _smaller(conversation: Conversation) -> Iterator[Conversation]:
    """Smaller conversations, the smallest first."""
    said = conversation.said
    for num_removed in range(min(_MOST_REMOVED, len(said) - 1), 0, -1):
        for start in range(len(said) - num_removed + 1):
            yield replace(conversation, said=said[:start] + said[start + num_removed :])
    for num_tools in range(len(conversation.tools)):
        yield replace(conversation, tools=conversation.tools[:num_tools])
    for idx, line in enumerate(said):
        for plainer in _plainer(line, idx):
            yield replace(conversation, said=(*said[:idx], plainer, *said[idx + 1 :]))


def _is_led(conversation: Conversation) -> bool:
    """Whether it is well-formed: a user begins, results follow calls, and it ends with a request."""
    said = [line.message for line in conversation.said if line.message.role != "system"]
    if not said or said[0].role != "user" or conversation.said[-1].message.role == "assistant":
        return False
    return all(
        bool(before.tool_calls) or before.role == "tool" if message.role == "tool" else message.role != before.role
        for before, message in itertools.pairwise(said)
    )


def _plainer(line: PlannedMessage, idx: int) -> Iterator[PlannedMessage]:
    """Simpler versions of the message, each with one element removed."""
    message, word = line.message, f"{line.message.role[0].upper()}{idx}"
    text, thought, calls = message.content, message.reasoning, message.tool_calls
    is_plain = text is None or (text[:1] == word[:1] and text[1:].isdigit())
    plainer = (
        replace(message, tool_calls=calls[:1]),
        replace(message, tool_calls=tuple(replace(call, arguments="{}") for call in calls)),
        replace(message, content=None if calls else text),
        replace(message, reasoning=None),
        replace(message, reasoning=None if thought is None else "Hm."),
        replace(message, content=text if is_plain else word),
    )
    lines = (replace(line, cut=None), replace(line, is_respelled=False), *(replace(line, message=m) for m in plainer))
    yield from (each for each in lines if each != line)
