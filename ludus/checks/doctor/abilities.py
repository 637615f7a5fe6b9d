"""Tests which elements of a conversation a template shows, silently drops, or refuses.

Knows: one small conversation for each question.  Knows not: random ones, forks.
"""

from __future__ import annotations

from dataclasses import replace

from ludus.checks.doctor.conversation import Abilities, Reception
from ludus.checks.doctor.reply_writer import PROBE_TOOL, has_thinking_tags
from ludus.errors import AgentError
from ludus.text.template import ChatTemplate
from ludus.types import Message, ToolCall

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
    """How `template` treats each element of a conversation."""

    def receives(*messages: Message, with_tools: bool = False, generation_prompt: bool = True) -> Reception:
        tools = (PROBE_TOOL,) if with_tools and template.renders_tools else ()
        try:
            shown = template.render(messages, tools, generation_prompt=generation_prompt)
        except AgentError:
            return "refused"
        return "shown" if _MARK in shown else "dropped"

    thinking = receives(_USER, replace(_ANSWER, reasoning=_MARK), generation_prompt=False)
    if thinking != "shown" and template.renders_tools:
        calling = replace(_PLAIN_CALL, reasoning=_MARK)
        thinking = receives(_USER, calling, replace(_RESULT, content="Probe."), with_tools=True)
    return Abilities(
        system=receives(_SYSTEM, _USER),
        late_system=receives(_USER, _ANSWER, _SYSTEM, _USER),
        tools="shown" if template.renders_tools else "refused",
        calls=receives(_USER, _CALLING, with_tools=True),
        parallel_calls=receives(_USER, _PARALLEL, with_tools=True),
        text_beside_calls=receives(_USER, _SAYING, with_tools=True),
        results=receives(_USER, _PLAIN_CALL, _RESULT, with_tools=True),
        thinking=thinking,
        thinks=thinking == "shown" or has_thinking_tags(template),
    )
