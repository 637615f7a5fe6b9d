"""What a template does with each thing that a conversation can hold: shown, dropped in silence, or refused.

Knows: one small conversation for each question.  Knows not: random ones, forks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ludus.checks.doctor.conversation import Abilities, Reception
from ludus.checks.doctor.reply_writer import PROBE_TOOL, has_thinking_tags
from ludus.errors import AgentError
from ludus.text.template import ChatTemplate
from ludus.types import Message, ToolCall, ToolSpec

_MARK = "ludusmark"
_SYSTEM, _USER = Message("system", _MARK), Message("user", "Probe.")
_ANSWER = Message("assistant", "Probe.")
_CALL = ToolCall("call00000", _MARK, "{}")
_CALLING = Message("assistant", tool_calls=(_CALL,))
_PARALLEL = Message("assistant", tool_calls=(replace(_CALL, name="probe"), replace(_CALL, id="call00001")))
_SAYING = Message("assistant", _MARK, tool_calls=(replace(_CALL, name="probe"),))
_PLAIN_CALL = Message("assistant", tool_calls=(replace(_CALL, name="probe"),))
_RESULT = Message("tool", _MARK, tool_call_id="call00000")


def probe(template: ChatTemplate) -> Abilities:
    """What `template` does with each part of a conversation."""
    tools = (PROBE_TOOL,) if template.renders_tools else ()
    thinking = _receives(template, [_USER, replace(_ANSWER, reasoning=_MARK)], generation_prompt=False)
    if thinking != "shown" and template.renders_tools:
        calling = replace(_PLAIN_CALL, reasoning=_MARK)
        thinking = _receives(template, [_USER, calling, replace(_RESULT, content="Probe.")], tools)
    return Abilities(
        system=_receives(template, [_SYSTEM, _USER]),
        late_system=_receives(template, [_USER, _ANSWER, _SYSTEM, _USER]),
        tools="shown" if template.renders_tools else "refused",
        calls=_receives(template, [_USER, _CALLING], tools),
        parallel_calls=_receives(template, [_USER, _PARALLEL], tools),
        text_beside_calls=_receives(template, [_USER, _SAYING], tools),
        results=_receives(template, [_USER, _PLAIN_CALL, _RESULT], tools),
        thinking=thinking,
        thinks=thinking == "shown" or has_thinking_tags(template),
    )


def _receives(
    template: ChatTemplate,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec] = (),
    *,
    generation_prompt: bool = True,
) -> Reception:
    try:
        shown = template.render(messages, tools, generation_prompt=generation_prompt)
    except AgentError:
        return "refused"
    return "shown" if _MARK in shown else "dropped"
