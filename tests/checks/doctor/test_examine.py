"""What the doctor says of small templates whose faults are known.

1. A fault that is put into a good template is found, named, and shown at its place.
2. Every construct is told from the others.
"""

from __future__ import annotations

import pytest

from ludus.checks.doctor.conversation import Conversation, PlannedMessage
from ludus.checks.doctor.examine import Examination, examine, subject_of_source
from ludus.checks.doctor.replay import replay
from ludus.errors import AgentError
from ludus.text.chat import shipped_templates
from ludus.types import Message, ToolCall, ToolSpec

CHATML = shipped_templates()["chatml-tools"]
LOOP = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
ASK = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def examined(source: str, conversations: int = 30) -> Examination:
    return examine(subject_of_source(source), name="template", num_conversations=conversations)


def constructs(found: Examination) -> set[str]:
    return set(found.counts) - {"exact", "refused"}


# 1. Faults


def test_the_shipped_template_is_exact() -> None:
    """The template that Ludus ships keeps everything, reads its calls back, and can be taken up."""
    found = examined(CHATML)
    assert found.is_exact()
    assert set(found.counts) == {"exact"}
    assert found.num_read_calls == found.num_written_calls > 0
    assert found.not_resumable == ()
    assert found.generation_prompt == "<|im_start|>assistant\n"
    assert found.stops == ("<|im_end|>",)
    row = next(row for row in found.transitions if row.kind == "tool result after call")
    assert row.appended == (
        "\n<|im_start|>user\n<tool_response>\n{tool}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert row.counts["respelled"] > 0


def test_lost_newline_after_a_tool_turn() -> None:
    """A template that loses the newline after a tool turn once the model has answered it is caught in the act."""
    whole = "{{- '<|im_end|>\\n' -}}\n        {%- endif -%}\n    {%- elif message.role == 'assistant'"
    assert whole in CHATML
    lost = whole.replace(
        "{{- '<|im_end|>\\n' -}}", "{{- '<|im_end|>' -}}{%- if loop.last -%}{{- '\\n' -}}{%- endif -%}"
    )
    found = examined(CHATML.replace(whole, lost))
    assert constructs(found) == {"whitespace"}
    assert not found.is_exact()
    assert not found.is_exact(["reasoning_stripped"])
    assert found.is_exact(["whitespace"])
    assert found.is_exact(["template"])
    (proof,) = found.forks
    assert [message.role for message in proof.messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert proof.divergence.before.endswith("</tool_response><|im_end|>")
    assert proof.divergence.seen.startswith("\n<|im_start|>assistant")
    assert proof.divergence.shown.startswith("<|im_start|>assistant")
    assert proof.divergence.tag is not None
    assert proof.divergence.tag.text == "{%- if loop.last -%}"
    verdicts = {row.kind: row.verdict for row in found.transitions}
    assert verdicts["tool result after call"] != "forks"
    assert verdicts["user after answer"] == "depends"


# 2. Constructs


@pytest.mark.parametrize(
    ("construct", "source", "tag"),
    [
        ("position", LOOP.replace("{{ m.content }}", "{% if loop.first %}* {% endif %}{{ m.content }}"), None),
        (
            "position",
            LOOP.replace("{{ m.content }}", "{% if not loop.last %}* {% endif %}{{ m.content }}"),
            "{% if not loop.last %}",
        ),
        (
            "system_moved",
            "{{ messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | join('|') }}"
            + LOOP.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}"),
            "{{ messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | join('|') }}",
        ),
        (
            "content_rewritten",
            LOOP.replace("{{ m.content }}", "{{ m.content | replace('7', '77') }}"),
            "{{ m.content | replace('7', '77') }}",
        ),
        ("date", "{{ strftime_now('%d') }}" + LOOP, "{{ strftime_now('%d') }}"),
    ],
)
def test_construct(construct: str, source: str, tag: str | None) -> None:
    """The fork is named, and the tag that decides it is quoted; what stays the same at every place is no fork."""
    found = examined(source + ASK)
    assert constructs(found) == ({construct} if tag else set())
    assert [proof.divergence.tag.text for proof in found.forks if proof.divergence.tag] == ([tag] if tag else [])
    assert found.reads_date == (construct == "date")


def test_tools_beside_the_newest_question() -> None:
    """Tools that move with the last message are told from other text that does."""
    tools = "{% if loop.last and tools %}{{ tools | tojson }}{% endif %}"
    calls = "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    found = examined(LOOP.replace("{{ m.content }}", tools + "{{ m.content }}" + calls) + ASK)
    assert constructs(found) == {"tools_moved"}
    assert found.forks[0].conversation.tools


def test_dropped_parts_are_told() -> None:
    """What a template drops or refuses is said, and no conversation stumbles over it."""
    found = examined("{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}<assistant>")
    assert (found.able.calls, found.able.tools) == ("dropped", "refused")
    assert found.num_written_calls == 0
    assert found.is_exact()
    refusing = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{% endfor %}"
    assert examined(refusing + LOOP + ASK).able.system == "refused"


def test_refusal_ends_a_conversation() -> None:
    """A request that the template refuses is counted with the template's words, and is no fork."""
    subject = subject_of_source(
        "{% if messages | length > 2 %}{{ raise_exception('too long') }}{% endif %}" + LOOP + ASK
    )
    said = tuple(PlannedMessage(Message(role, "x")) for role in ("user", "assistant", "user", "assistant", "user"))
    (step,) = replay(subject, Conversation((), said)).steps
    assert (step.outcome, step.kind) == ("refused", "user after answer")
    assert "too long" in step.words
    found = examine(subject, name="template", num_conversations=3)
    assert found.is_exact()
    assert {row.verdict for row in found.transitions} == {"refused"}


def test_unread_calls_are_taken_as_they_were_meant() -> None:
    """Where no parser reads the calls, the plan is derived all the same, and the first unread reply is kept."""
    calls = "{% for c in m.tool_calls or [] %}CALL {{ c.function | tojson }}{% endfor %}"
    source = "{{ tools | tojson if tools else '' }}" + LOOP.replace("{{ m.content }}", "{{ m.content }}" + calls) + ASK
    found = examined(source)
    assert found.is_exact()
    assert found.num_read_calls == 0
    assert found.unread is not None
    assert "CALL {" in found.unread.text
    assert sum(row.counts["assumed"] for row in found.transitions) > 0


def test_same_seed_same_findings() -> None:
    """An examination can be repeated."""
    assert examined(CHATML, 5) == examined(CHATML, 5)


def test_prompt_that_has_thought() -> None:
    """A prompt that closes the thinking leaves none to the model; one that opens it makes the model think."""
    closed = LOOP + "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
    opened = LOOP + "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    assert all("thinking" not in row.kind for row in examined(closed).transitions)
    assert all("thinking" in row.kind for row in examined(opened).transitions)


def test_variables_reach_the_template() -> None:
    """What is set for the template decides, and what it reads is told."""
    source = LOOP.replace("{{ m.content }}", "{% if mark and loop.last %}* {% endif %}{{ m.content }}") + ASK
    assert examined(source).is_exact()
    assert examined(source).variables == ("mark",)
    marked = examine(subject_of_source(source, template_kwargs={"mark": True}), name="t", num_conversations=10)
    assert constructs(marked) == {"position"}
    with pytest.raises(AgentError):
        examine(subject_of_source(source, template_kwargs={"messages": []}), name="t", num_conversations=1)


def test_proof_holds_what_was_meant() -> None:
    """A proof names tools, calls and thinking that it needs, and nothing that it does not."""
    source = LOOP.replace(
        "{{ m.content }}",
        "{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}",
    )
    (proof,) = examined(source + ASK).forks
    assert proof.construct == "reasoning_stripped"
    assert proof.messages == (
        Message("user", "U0"),
        Message("assistant", "A1", reasoning="Hm."),
        Message("user", "U2"),
    )
    assert proof.conversation == Conversation((), tuple(map(PlannedMessage, proof.messages)))
    assert ToolSpec("unused") not in proof.conversation.tools
    assert not any(isinstance(call, ToolCall) for message in proof.messages for call in message.tool_calls)
