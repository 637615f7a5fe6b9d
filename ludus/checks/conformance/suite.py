"""Lists all cases, in the order of the matrix, and selects cases by a pattern.

Knows: the files of cases.  Knows not: what they test.
"""

from __future__ import annotations

import fnmatch

from ludus.checks.conformance.case import PROTOCOLS, TOPICS, Case, found
from ludus.checks.conformance.cases import (
    access,
    administration,
    chat_fields,
    chat_stream,
    chat_text,
    chat_tools,
    completions,
    errors,
    laws,
    messages,
    responses,
    sessions,
    tables,
    tool_laws,
)
from ludus.errors import UserError

CHAT = (chat_text, chat_stream, chat_tools, chat_fields)
OTHERS = (responses, messages, completions, access, errors, sessions, administration)
FILES = (*CHAT, *OTHERS, tables, laws, tool_laws)


def all_cases() -> tuple[Case, ...]:
    """Every case, by protocol and topic."""
    return tuple(sorted(found(Case, *FILES), key=lambda one: (PROTOCOLS.index(one.protocol), TOPICS.index(one.topic))))


def chosen(pattern: str | None) -> tuple[Case, ...]:
    """Cases whose name matches `pattern`, a part of a name or a shell pattern; None: all. Raises UserError if none
    do."""
    if pattern is None:
        return all_cases()
    wanted = pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*"
    found = tuple(case for case in all_cases() if fnmatch.fnmatchcase(case.name, wanted))
    if not found:
        names = ", ".join(sorted({f"{case.protocol}/{case.topic}".replace(" ", "-") for case in all_cases()}))
        raise UserError(f"no case matches {pattern!r}; names begin with {names}")
    return found
