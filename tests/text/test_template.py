"""Templates render as their authors mean it, and say so when they cannot."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest

from ludus.errors import AgentError, UserError
from ludus.text.template import ChatTemplate
from ludus.types import Message, ToolCall, ToolSpec

LoadTemplate = Callable[..., ChatTemplate]
ADD = ToolSpec("add", "Adds <two> numbers.", {"type": "object", "properties": {"a": {"type": "number"}}})
CALL = ToolCall("call_1", "add", '{"a":1}')


def test_chatml(load_template: LoadTemplate) -> None:
    """SmolLM2's template puts its default system message before a conversation that has none."""
    template = load_template("chatml")
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    assert template.render([Message("user", "Hi")]) == (
        system + "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.render([Message("user", "Hi")], generation_prompt=False) == (
        system + "<|im_start|>user\nHi<|im_end|>\n"
    )


@pytest.mark.parametrize(
    ("name", "renders_tools"),
    [
        ("chatml", False),
        ("chatml-tools", True),
        ("gemma", False),
        ("keepthinking", False),
        ("llama3", True),
        ("mistral", True),
        ("qwen2", True),
        ("qwen3", True),
        ("r1", False),
    ],
)
def test_tools_are_probed(load_template: LoadTemplate, name: str, renders_tools: bool) -> None:
    """Whether tools reach the model is found out by rendering one."""
    template = load_template(name)
    assert template.renders_tools is renders_tools
    if renders_tools:
        assert "Adds <two> numbers." in template.render([Message("user", "Hi")], [ADD])
    else:
        with pytest.raises(AgentError) as caught:
            template.render([Message("user", "Hi")], [ADD])
        assert (caught.value.status, caught.value.code, caught.value.param) == (400, "tools_unsupported", "tools")


def test_refusal_is_the_agents_error(load_template: LoadTemplate) -> None:
    """What the template refuses, by itself or by failing, is a typed error of the agent."""
    for name, messages in (
        ("gemma", [Message("system", "No.")]),
        ("mistral", [Message("user", "a"), Message("user", "b")]),
        ("llama3", [Message("user", "a"), Message("assistant", tool_calls=(CALL, CALL))]),
    ):
        with pytest.raises(AgentError) as caught:
            load_template(name).render(messages)
        assert (caught.value.status, caught.value.code) == (400, "template_error")
    with pytest.raises(AgentError, match="refuses"):
        ChatTemplate("{{ messages[3].content + 1 }}").render([Message("user", "a")])


def test_arguments_become_objects(load_template: LoadTemplate) -> None:
    """Arguments of a call reach the template as an object; text that is none stays text."""
    source = "{% for call in messages[0].tool_calls %}{{ call.function.arguments is mapping }} {% endfor %}"
    calls = (CALL, ToolCall("call_2", "add", "{broken"), ToolCall("call_3", "add", "[1]"))
    assert ChatTemplate(source).render([Message("assistant", tool_calls=calls)]) == "True False False "
    shown = load_template("qwen2").render([Message("user", "?"), Message("assistant", tool_calls=(CALL,))])
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n' in shown


def test_absent_content() -> None:
    """Missing content is empty text, unless the template shows calls only to messages without any content."""
    calling = [Message("assistant", tool_calls=(CALL,))]
    picky = ChatTemplate(
        "{% for m in messages %}{% if m.content is none %}CALL {{ m.tool_calls[0].function.name }}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert picky.render(calling) == "CALL add"
    assert picky.render([Message("assistant", None)]) == ""
    assert ChatTemplate("{% for m in messages %}<{{ m.content }}>{% endfor %}").render(calling) == "<>"


def test_fields_of_messages() -> None:
    """Reasoning, call ids and names are passed on, and absent where a message has none."""
    source = (
        "{% for m in messages %}{{ m.role }}|{{ m.reasoning_content | default('-') }}|"
        "{{ m.tool_call_id | default('-') }}|{{ m.name | default('-') }};{% endfor %}"
    )
    messages = [
        Message("user", "a", name="Ann"),
        Message("assistant", "b", reasoning="hm"),
        Message("tool", "c", tool_call_id="call_1"),
    ]
    assert ChatTemplate(source).render(messages) == "user|-|-|Ann;assistant|hm|-|-;tool|-|call_1|-;"


def test_developer_is_system_to_those_who_do_not_know(load_template: LoadTemplate) -> None:
    """The role 'developer' is shown as 'system' unless the template names it."""
    shown = load_template("chatml").render([Message("developer", "Be brief.")])
    assert shown.startswith("<|im_start|>system\nBe brief.")
    assert ChatTemplate("{{ messages[0].role }}{# developer #}").render([Message("developer", "")]) == "developer"


def test_extensions_of_the_hub() -> None:
    """Templates may use what `transformers` gives them: dates, loop controls, generation marks, plain JSON."""
    template = ChatTemplate(
        "{{ strftime_now('%Y-%m-%d') }}{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content | tojson }}{% endgeneration %}{% endfor %}",
        now=lambda: datetime(2026, 1, 31),
    )
    assert template.render([Message("user", "<é>"), Message("user", "b")]) == '2026-01-31"<é>"'


def test_template_arguments(load_template: LoadTemplate) -> None:
    """Arguments of the request reach the template; those that the conversation sets itself are refused."""
    template = load_template("qwen3")
    shown = template.render([Message("user", "Hi")], template_kwargs={"enable_thinking": False})
    assert shown.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    with pytest.raises(AgentError) as caught:
        template.render([Message("user", "Hi")], template_kwargs={"messages": []})
    assert caught.value.param == "chat_template_kwargs"


def test_default_arguments() -> None:
    """They are of every rendering, unless it has its own; names of the conversation are refused at once."""
    template = ChatTemplate("{{ messages[0].content }}{{ tone }}", default_kwargs={"tone": "!"})
    assert template.render([Message("user", "Hi")]) == "Hi!"
    assert template.render([Message("user", "Hi")], template_kwargs={"tone": "?"}) == "Hi?"
    with pytest.raises(UserError, match=r"\['tools'\] are set by the conversation"):
        ChatTemplate("{{ messages }}", default_kwargs={"tools": []})


def test_no_way_out_of_the_sandbox() -> None:
    """A template cannot reach Python behind its values."""
    with pytest.raises(AgentError):
        ChatTemplate("{{ messages.__class__.__mro__ }}{{ messages.append(1) }}").render([Message("user", "a")])


def test_bad_source_is_the_users_error() -> None:
    """A template that is no Jinja is refused when it is loaded."""
    with pytest.raises(UserError, match="no valid Jinja"):
        ChatTemplate("{% for %}")


def test_shipped_tools_template(load_template: LoadTemplate) -> None:
    """The shipped template shows calls as sampled Hermes calls and groups the tools' answers."""
    messages = [
        Message("system", "Sum."),
        Message("user", "1+1?"),
        Message("assistant", "Let me add.", tool_calls=(CALL, CALL)),
        Message("tool", "2", tool_call_id="call_1"),
        Message("tool", "3", tool_call_id="call_1"),
    ]
    shown = load_template("chatml-tools").render(messages, [ADD])
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert shown.startswith("<|im_start|>system\nSum.\n\n# Tools")
    assert shown.endswith(
        f"<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\nLet me add.\n{call}\n{call}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert load_template("chatml-tools").render([Message("user", "Hi")]) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
