"""Which tag wrote what, told by its line in the source."""

from __future__ import annotations

from ludus.checks.doctor.source import WatchedTemplate
from ludus.text.template import ChatTemplate

SOURCE = """{# {{ no tag }} #}{% raw %}{{ nor this }}{% endraw %}
{% macro shout(text) %}{{ text }}!{% endmacro %}
{%- for m in messages %}{% if m == "}}" %}{{ {"a": {"b": m}}["a"]["b"] }}{% elif m == 'x' -%}
  EX {{- shout(m) }}
{% else %}{{ '%}' }}{% endif %}{% endfor %}"""


def watched() -> tuple[WatchedTemplate, ChatTemplate]:
    template = ChatTemplate(SOURCE)
    return WatchedTemplate(template.environment, SOURCE), template


def test_text_is_unchanged() -> None:
    """Strings, brackets, comments and raw text that look like tags are left alone."""
    watch, template = watched()
    for messages in ([], ["}}"], ["x", "y", "}}"]):
        writing = watch.render({"messages": messages})
        assert writing.text == template.environment.from_string(SOURCE).render(messages=messages)


def test_tags_by_their_lines() -> None:
    """Every piece leads to its tag, as its author wrote it."""
    watch, _ = watched()
    writing = watch.render({"messages": ["}}", "x", "y"]})
    tags = [watch.tag(line) for line in writing.lines]
    told = [(tag.line, tag.text) for tag in tags if tag is not None]
    assert told[-1] == (5, "{{ '%}' }}")
    assert (3, '{{ {"a": {"b": m}}["a"]["b"] }}') in told
    assert tags[0] is None  # text before the first tag
    assert watch.tag(writing.line_at(0)) is None
    assert writing.line_at(10_000) == writing.lines[-1]


def test_the_condition_that_decides() -> None:
    """Of two pieces in different branches it is their condition, of a piece that is gone the one around it."""
    watch, _ = watched()
    lines = dict(zip(("brace", "rest"), (watch.render({"messages": [m]}).lines[-1] for m in ("}}", "y")), strict=True))
    decides = watch.decider(lines["brace"], lines["rest"])
    assert decides is not None
    assert decides.text in ('{% if m == "}}" %}', "{% elif m == 'x' -%}")
    gone = watch.decider(lines["brace"], 0, is_gone=True)
    assert gone is not None
    assert gone.text == '{% if m == "}}" %}'
    same = watch.decider(lines["rest"], lines["rest"])
    assert same is not None
    assert same.text == "{{ '%}' }}"
