"""A rendering that is taken up where an earlier one stood is the rendering from the start.

1. Whatever is said, and whatever is changed in between, the text is the same.
2. Only what is new goes through the template, where that can be proven.
3. Where it cannot, nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import AgentError
from ludus.text.template import ChatTemplate, Rendered
from ludus.types import Message, ToolCall, ToolSpec

LoadTemplate = Callable[..., ChatTemplate]
NAMES = ("chatml", "chatml-tools", "qwen2", "qwen3", "gemma", "llama3", "mistral", "lastonly", "keepthinking", "r1")
ADD = ToolSpec("add", "Adds.", {"type": "object"})
WORDS = st.text(st.sampled_from("ab<>{} \n"), max_size=4)
CALLS = st.lists(st.builds(ToolCall, st.just("x"), st.just("add"), st.sampled_from(['{"a": 1}', "no"])), max_size=2)
MESSAGES = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    WORDS,
    reasoning=st.one_of(st.none(), WORDS),
    tool_calls=CALLS.map(tuple),
)


def render(template: ChatTemplate, *args: Any, **kwargs: Any) -> Rendered | str:
    """The rendering, or what the template says against it."""
    try:
        return template.extend(*args, **kwargs)
    except AgentError as error:
        return error.message


# 1. The same text


@given(
    name=st.sampled_from(NAMES),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["go on", "go on", "go on", "edit", "drop", "tools", "kwargs"]),
            st.lists(MESSAGES, max_size=3),
            st.integers(0, 20),
        ),
        max_size=6,
    ),
)
def test_any_edit(load_template: LoadTemplate, name: str, steps: list[tuple[str, list[Message], int]]) -> None:
    """Through conversations that go on, are edited, cut short, or asked otherwise, both ways give one text."""
    template = load_template(name)
    messages, tools, kwargs = [Message("user", "Hi")], (ADD,) if template.renders_tools else (), {"enable_thinking": 1}
    earlier: list[Rendered] = []
    for kind, new, at in steps:
        if kind == "edit":
            messages[at % len(messages)] = replace(messages[at % len(messages)], content="edited")
        elif kind == "drop" and len(messages) > 1:
            del messages[at % len(messages)]
        elif kind == "tools" and template.renders_tools:
            tools = (*tools, ADD)[-(at % 3) :] if at % 3 else ()
        elif kind == "kwargs":
            kwargs = {"enable_thinking": (True, 1, False, "")[at % 4]}
        messages += new
        fresh = render(template, None, tuple(messages), tools, template_kwargs=kwargs)
        for known in earlier:
            resumed = render(template, known, tuple(messages), tools, template_kwargs=kwargs)
            assert text_of(resumed) == text_of(fresh)
        if isinstance(fresh, Rendered):
            earlier = [*earlier[-3:], fresh]


def text_of(rendered: Rendered | str) -> str:
    return rendered.text if isinstance(rendered, Rendered) else rendered


def test_both_ends_of_one_rendering_go_on(load_template: LoadTemplate) -> None:
    """Two conversations that go on from one rendering do not see each other's messages."""
    template, hi = load_template("chatml"), Message("user", "Hi")
    start = template.extend(None, (hi,))
    for word in ("one", "other", "third"):
        messages = (hi, Message("assistant", word), Message("user", f"Why {word}?"))
        assert template.extend(start, messages).text == template.render(messages)


# 2. Only what is new


@pytest.mark.parametrize("name", NAMES)
def test_known_messages_are_not_rendered_again(load_template: LoadTemplate, name: str) -> None:
    """In every template, a turn renders the messages since the last one, and the last of those it knew."""
    template = load_template(name)
    messages = [Message("user", "Hi")]
    known = template.extend(None, tuple(messages))
    for _ in range(5):
        messages += [Message("assistant", "Yes"), Message("user", "More")]
        known = template.extend(known, tuple(messages), template_kwargs={})
        # Where a template looks for the last question, a new one can change every earlier round.
        assert known.num_new_messages == (len(messages) if name in ("qwen3", "mistral") else 3)


def test_a_session_of_calls_in_a_thinking_template(load_template: LoadTemplate) -> None:
    """While a thinking model calls tools, the last question stays, and so does what stands before."""
    template = load_template("qwen3")
    messages = [Message("user", "Hi")]
    known = template.extend(None, tuple(messages), (ADD,))
    for _ in range(5):
        calls = (ToolCall("x", "add", "{}"),)
        messages += [Message("assistant", None, "Hm", calls), Message("tool", "2", tool_call_id="x")]
        known = template.extend(known, tuple(messages), (ADD,))
        assert known.num_new_messages == 3
        assert known.text == template.render(messages, (ADD,))


def test_what_the_template_takes_off_the_front() -> None:
    """A template that shows the system message apart goes on with the others."""
    template = ChatTemplate(
        "{% if messages[0].role == 'system' %}[{{ messages[0].content }}]{% set rest = messages[1:] %}"
        "{% else %}{% set rest = messages %}{% endif %}"
        "{% for m in rest %}{{ loop.index }}{{ '' if loop.first else loop.previtem.role }}{{ m.content }}{% endfor %}"
    )
    for front in ([], [Message("system", "S")]):
        messages = [*front, Message("user", "a"), Message("assistant", "b")]
        known = template.extend(None, tuple(messages))
        messages += [Message("user", "c"), Message("assistant", "d")]
        going_on = template.extend(known, tuple(messages))
        assert going_on.text == template.render(messages)
        assert going_on.num_new_messages == len(front) + 3


def test_macros_are_looked_into() -> None:
    """A macro that only writes may be used; one that counts may not."""
    writes = "{% macro show(m) %}<{{ m.content }}{{ mark }}>{% endmacro %}"
    counts = "{% set ns = namespace(n=0) %}{% macro show(m) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endmacro %}"
    for macro, num_new in ((writes, 2), (counts, 3)):
        template = ChatTemplate(macro + "{% for m in messages %}{{ show(m) }}{% endfor %}")
        assert num_new_after_two(template) == num_new


# 3. Nothing is kept


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ m.content }}{{ messages | length }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{{ messages[-1].role }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{{ messages[loop.index0 - 1].role }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{{ messages[loop.index0 + 2] is defined }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{{ messages[:2] | map(attribute='role') | join }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{{ loop.length }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{{ loop['revindex'] }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{{ strftime_now('%d') }}{% endfor %}",
        "{% for m in messages %}{{ loop.cycle('a', 'b') }}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% for n in messages %}{{ n.content }}{% endfor %}{% endfor %}",
        "{% for m in messages if m.content %}{{ m.content }}{{ loop.index }}{% endfor %}",
        "{% for m in messages[::-1] %}{{ m.content }}{% endfor %}",
        "{% for m in messages | reverse %}{{ m.content }}{% endfor %}",
        "{% set c = cycler('a', 'b') %}{% for m in messages %}{{ c.next() }}{{ m.content }}{% endfor %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endfor %}",
        "{% set n = messages | length %}{% for m in messages %}{{ n }}{{ m.content }}{% endfor %}",
        "{% set rest = messages[:1] + messages[2:] %}{% for m in rest %}{{ m.content }}{% endfor %}",
        "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
        "{% macro last() %}{{ messages[1].content }}{% endmacro %}{% for m in messages %}{{ last() }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{{ ['a', 'b'] | random }}{% endfor %}",
    ],
)
def test_what_looks_around_is_rendered_from_the_start(source: str) -> None:
    """A loop that looks further than one message ahead, counts by itself or asks the clock is never taken up."""
    assert num_new_after_two(ChatTemplate(source)) == 3


def num_new_after_two(template: ChatTemplate) -> int:
    """How many of three messages go through `template` when two of them were shown before."""
    messages = (Message("user", "a"), Message("assistant", "b"), Message("user", "c"))
    going_on = template.extend(template.extend(None, messages[:2]), messages)
    if "random" not in template.source:
        assert going_on.text == template.render(messages)
    return going_on.num_new_messages


def test_a_new_day_begins_anew() -> None:
    """What stands before the loop is shown anew, and when it is another text, so is the rest."""
    today = [1]
    source = "{{ strftime_now('%d') }}{% for m in messages %}{{ m.content }}{% endfor %}"
    template = ChatTemplate(source, now=lambda: datetime(2026, 1, today[0]))
    hi = Message("user", "Hi")
    known = template.extend(None, (hi,))
    today[0] = 2
    going_on = template.extend(known, (hi, hi))
    assert (known.text, going_on.text) == ("01Hi", "02HiHi")
    assert going_on.num_new_messages == 2


def test_pure_functions_may_be_called() -> None:
    """`range` in a loop does no harm, unless an argument of that name replaces it."""
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{{ range | string }}{{ dict(a=1) }}{% endfor %}")
    assert num_new_after_two(template) == 2
    hi = Message("user", "Hi")
    known = template.extend(None, (hi, hi), template_kwargs={"range": 1})
    assert template.extend(known, (hi, hi, hi), template_kwargs={"range": 1}).num_new_messages == 2
    assert template.extend(known, (hi, hi, hi), template_kwargs={"range": 2}).num_new_messages == 3


@pytest.mark.parametrize("changed", [{"mark": True}, {"mark": 1.0}, {"mark": [1]}, {}])
def test_another_argument_begins_anew(changed: Mapping[str, Any]) -> None:
    """An argument that the loop reads must be the same in value and kind; True is not 1."""
    template, hi = ChatTemplate("{% for m in messages %}{{ m.content }}{{ mark }}{% endfor %}"), Message("user", "Hi")
    known = template.extend(None, (hi, hi), template_kwargs={"mark": 1})
    assert template.extend(known, (hi, hi, hi), template_kwargs={"mark": 1}).num_new_messages == 2
    going_on = template.extend(known, (hi, hi, hi), template_kwargs=changed)
    assert going_on.text == template.render((hi, hi, hi), template_kwargs=changed)
    assert going_on.num_new_messages == 3
