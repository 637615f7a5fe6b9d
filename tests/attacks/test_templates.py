"""What a chat template, which comes with a model from anywhere, might reach for: nothing behind its values."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from ludus.errors import AgentError, UserError
from ludus.text.template import ChatTemplate
from ludus.types import Message

SECRET = "a-secret-of-this-process"
REACHES = {
    "class of the messages": "{{ messages.__class__.__mro__[1].__subclasses__() }}",
    "class of a text": "{{ ''.__class__.__base__.__subclasses__() }}",
    "class by a filter": "{{ messages | attr('__class__') }}",
    "classes of all values": "{{ messages | map(attribute='__class__') | list }}",
    "class of a loop": "{% for m in messages %}{{ loop.__class__.__init__.__globals__ }}{% endfor %}",
    "globals of our functions": "{{ raise_exception.__globals__['jinja2'].sys.modules['os'].environ['SECRET'] }}",
    "globals of the clock": "{{ strftime_now.__globals__ }}{{ strftime_now.__closure__ }}",
    "globals of a counter": "{{ cycler.__init__.__globals__.os.environ.SECRET }}",
    "globals of words": "{{ lipsum.__globals__.os.environ.SECRET }}",
    "globals of a namespace": "{{ namespace.__init__.__globals__ }}",
    "globals of a macro": "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}{{ m._environment.globals }}",
    "the template itself": "{{ self.__init__.__globals__ }}{{ self._TemplateReference__context.environment }}",
    "format of a text": "{{ '{0.__class__.__init__.__globals__}'.format(cycler) }}",
    "format kept for later": "{% set f = '{0.__globals__}'.format %}{{ f(raise_exception) }}",
    "format of a mapping": "{{ '{a.__globals__}'.format_map({'a': raise_exception}) }}",
    "format by a filter": "{{ '%s' | format(raise_exception.__globals__) }}",
    "code of a function": "{{ raise_exception.__code__.co_consts }}{{ raise_exception.func_globals }}",
    "a file, included": "{% include '/etc/passwd' %}",
    "a file, imported": "{% import '/etc/passwd' as p %}{{ p }}",
    "a file, extended": "{% extends '/etc/passwd' %}",
    "a module": "{% import 'os' as os %}{{ os.environ.SECRET }}",
    "a range without end": "{% for i in range(10 ** 9) %}x{% endfor %}",
    "itself, again and again": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a longer conversation": "{{ messages.append(messages[0]) }}",
    "a changed message": "{{ messages[0].update({'content': 'changed'}) }}",
    "a message less": "{{ messages.pop() }}",
}
HEARD = "{{ 7 * 7 }}{% include '/etc/passwd' %}{{ raise_exception('heard') }}"


@pytest.mark.parametrize("name", REACHES)
def test_a_template_reaches_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused, or shows nothing; the conversation is as it was."""
    monkeypatch.setenv("SECRET", SECRET)
    message = Message("user", "as it was")
    try:
        template = ChatTemplate("{{ messages[0].content }}" + REACHES[name])
        shown = template.render([message])
    except (AgentError, UserError) as error:
        shown = str(error)
    assert SECRET not in shown and "root:" not in shown and str(Path.cwd()) not in shown
    assert "<class" not in shown and "<module" not in shown and "__builtins__" not in shown and "x" * 99 not in shown
    assert message == Message("user", "as it was")


@pytest.mark.parametrize("role", ["user", "assistant", "system", "tool"])
def test_what_is_said_is_no_template(role: str) -> None:
    """Whoever says it."""
    shown = ChatTemplate("{{ messages[0].content }}").render([Message(role, HEARD)])
    assert shown == HEARD


def test_a_template_changes_no_other_rendering() -> None:
    """What it keeps of one conversation is not there in the next."""
    template = ChatTemplate(
        "{% set ns = namespace(seen='') %}{% for m in messages %}{% set ns.seen = ns.seen + m.content %}{% endfor %}"
        "{{ ns.seen }}{{ strftime_now('%Y') }}",
        now=lambda: datetime(2026, 1, 31),
    )
    assert template.render([Message("user", "a")]) == "a2026"
    assert template.render([Message("user", "b")]) == "b2026"
