"""A template is given messages in the shape in which it shows them."""

from __future__ import annotations

from ludus.text.template import ChatTemplate
from ludus.types import Message, ToolCall

HI = Message("user", "Hi")
CALLING = Message("assistant", reasoning="hm", tool_calls=(ToolCall("x", "add", '{"a":  1}'),))
CALLS = "{% for m in messages %}{{ m.role }}{% for c in m.tool_calls or [] %}|{{ c.function.name }} "


def test_thinking_by_its_own_name() -> None:
    """Thinking goes where the template looks for it."""
    for key in ("reasoning_content", "reasoning", "thinking"):
        source = "{% for m in messages %}{{ m.content }}{% if m.KEY %}[{{ m.KEY }}]{% endif %}{% endfor %}"
        template = ChatTemplate(source.replace("KEY", key))
        assert template.render([Message("assistant", "Yo", reasoning="hm")]) == "Yo[hm]"


def test_thinking_shown_beside_calls_alone() -> None:
    """A template that shows thinking only of a message that calls tools is understood too."""
    source = "{% for m in messages %}{{ m.role }}{% if m.tool_calls %}[{{ m.thinking }}]{% endif %}{% endfor %}"
    assert ChatTemplate(source).render([HI, CALLING]) == "userassistant[hm]"


def test_thinking_inside_the_content() -> None:
    """A template that knows the tags, and no name for the thinking, gets it in the content, if it shows it there."""
    source = "{# <think></think> #}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    shown = ChatTemplate(source).render([HI, Message("assistant", "Yo", reasoning="hm")])
    assert shown == "<user>Hi<assistant><think>\nhm\n</think>\n\nYo"
    strips = source.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
    assert ChatTemplate(strips).render([HI, Message("assistant", "Yo", reasoning="hm")]) == "<user>Hi<assistant>Yo"


def test_arguments_as_text() -> None:
    """A template that joins the arguments to its text gets JSON as it was sampled; one that prints objects as well."""
    end = "{% endfor %}{% endfor %}"
    joined = ChatTemplate(CALLS + "{{ 'with ' + c.function.arguments }}" + end)
    printed = ChatTemplate(CALLS + "{{ c.function.arguments }}" + end)
    written = ChatTemplate(CALLS + "{{ c.function.arguments | tojson }}" + end)
    assert joined.render([HI, CALLING]) == 'userassistant|add with {"a":  1}'
    assert printed.render([HI, CALLING]) == 'userassistant|add {"a":  1}'
    assert written.render([HI, CALLING]) == 'userassistant|add {"a": 1}'


def test_content_as_parts() -> None:
    """A template of a model that sees gets its text as a list of parts."""
    source = (
        "{% for m in messages %}{{ m.role }}:"
        "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
    )
    assert ChatTemplate(source).render([HI, Message("assistant", "Yo"), Message("assistant")]) == (
        "user:Hiassistant:Yoassistant:"
    )


def test_variables() -> None:
    """Names from outside are found, those that the template sets itself are not, unless it asks for them first."""
    source = (
        "{% for m in messages %}{% if m %}{% set text = m.content %}{% endif %}{{ text }}{% endfor %}{{ bos_token }}"
        "{% if effort is not defined %}{% set effort = 'low' %}{% endif %}{{ effort }}{{ enable_thinking }}"
    )
    assert ChatTemplate(source).variables == {"messages", "bos_token", "effort", "enable_thinking"}


def test_why_a_rendering_cannot_be_taken_up() -> None:
    """The line and the reason are named."""
    counts = "{% set ns = namespace(n=0) %}\n{% for m in messages %}\n{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endfor %}"
    assert ChatTemplate(counts).not_resumable == ("line 3: a round writes into ns.n, which later rounds read",)
    assert ChatTemplate("{{ messages | length }}").not_resumable == ("it has no loop over the messages",)
    looks = "{% for m in messages %}{{ messages | length }}{% endfor %}"
    assert "messages that are still to come" in ChatTemplate(looks).not_resumable[0]
    assert ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}").not_resumable == ()
