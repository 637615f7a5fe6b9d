"""Renders messages to a prompt's text with a model's chat template.

Knows: Jinja as the model hubs write it.  Knows not: tokens, parsers, engines.
Invariant: rendering is pure, except that a template may ask for today's date.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ludus.errors import AgentError, UserError
from ludus.text.form import MessageForm, tool_value
from ludus.text.resumable import Bookmark, Rendering, ResumableTemplate, is_own
from ludus.types import Message, ToolSpec

_PROBE_NAME = "ludus_probe_function"
_PROBE_TOOL = ToolSpec(name=_PROBE_NAME, description="Probe.", parameters={"type": "object", "properties": {}})
_USER = Message("user", "Probe.")
_PROBES = ((_USER,), (Message("system", "Probe."), _USER))
_OWN_NAMES = frozenset({"messages", "tools", "add_generation_prompt"})
# What a template can fail with: its own refusals, and Python's answers to operations on values it did not expect.
_FAILURES = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Shown:
    """The point at which the rendering of a conversation can be resumed by one that continues it."""

    values: list[dict[str, Any]] = field(repr=False)
    """The messages in the form that the template gets, in order. Resumed renderings append to it."""
    bookmark: Bookmark


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered conversation."""

    messages: Sequence[Message]
    text: str
    shown: Shown | None = None
    """None: a conversation that continues it is rendered from the start."""
    num_new_messages: int = 0
    """Number of messages that were rendered; the text of the others was known."""


class ChatTemplate:
    """Renders messages as `transformers` would. Safe to share between threads."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] = {},
        *,
        default_kwargs: Mapping[str, Any] = {},
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """default_kwargs: template arguments of every rendering, unless the rendering has its own of the same name.

        Raises UserError if the source is invalid, or if an argument has a name that the conversation itself sets.
        """
        if taken := _OWN_NAMES & default_kwargs.keys():
            raise UserError(_taken(taken))
        self.source = source
        self.special_tokens: Mapping[str, str] = dict(special_tokens)
        self.default_kwargs: Mapping[str, Any] = dict(default_kwargs)
        try:
            self.environment = _environment(now)
            self._resumable = ResumableTemplate.of(self.environment, source)
            self.variables = _variables(self.environment.parse(source))
            """Names that it reads and does not set itself: its arguments, special tokens."""
        except jinja2.TemplateError as error:
            raise UserError(f"The chat template is no valid Jinja: {error}. Pass another `chat_template`.") from error
        self._form = MessageForm.of(source, self._show)
        self.renders_tools = any(self._shows_tool(messages) for messages in _PROBES)

    @property
    def not_resumable(self) -> tuple[str, ...]:
        """Why a rendering cannot be resumed, for each loop of the template; empty if it can."""
        return self._resumable.not_resumable

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        *,
        generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] = {},
    ) -> str:
        """The text of the conversation, ending in the generation prompt if wanted; raises what `extend` does."""
        return self.extend(
            None, messages, tools, generation_prompt=generation_prompt, template_kwargs=template_kwargs
        ).text

    def extend(
        self,
        earlier: Rendered | None,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        *,
        generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] = {},
    ) -> Rendered:
        """As `render`, but starting from the end of what it provably shares with `earlier`.

        earlier: an earlier rendering of this template; only one thread at a time may continue it.
        Raises AgentError: `template_error` if the template refuses the messages, `tools_unsupported` if tools are given
        to a template that would silently drop them.
        """
        if tools and not self.renders_tools:
            raise AgentError(
                "The model's chat template does not show tools to the model. "
                "Send no 'tools', or load the model with a template that has them (model.chat_template=chatml-tools).",
                code="tools_unsupported",
                param="tools",
            )
        if taken := _OWN_NAMES & set(template_kwargs):
            raise AgentError(_taken(taken), code="template_error", param="chat_template_kwargs")
        known = _known(earlier, messages)
        values = self.values(
            messages, tools, generation_prompt=generation_prompt, template_kwargs=template_kwargs, known=known
        )
        made = self._render(values, known)
        shown = None if made.bookmark is None else Shown(values["messages"], made.bookmark)
        return Rendered(messages, made.text, shown, len(messages) - made.num_kept)

    def values(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        *,
        generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] = {},
        known: Rendered | None = None,
    ) -> dict[str, Any]:
        """All values that the template gets for a conversation, special tokens included.

        known: a rendering of the first of these messages, whose values are reused.
        """
        return {
            **self.special_tokens,
            **self.default_kwargs,
            **template_kwargs,
            "messages": self._values(known, messages),
            "tools": [tool_value(tool) for tool in tools] or None,
            "add_generation_prompt": generation_prompt,
        }

    def _render(self, values: Mapping[str, Any], known: Rendered | None = None) -> Rendering:
        try:
            if known is None or known.shown is None:
                return self._resumable.render(values)
            return self._resumable.render(values, earlier_text=known.text, bookmark=known.shown.bookmark)
        except _FAILURES as error:
            raise AgentError(
                f"The model's chat template refuses these messages: {error}. Change roles, order or content.",
                code="template_error",
                param="messages",
            ) from error

    def _values(self, known: Rendered | None, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The values of the messages; known ones are reused, not copied."""
        num_known = 0 if known is None else len(known.messages)
        values = [] if known is None or known.shown is None else known.shown.values
        if len(values) != num_known:  # another rendering went on already
            values = values[:num_known]
        values += [self._form.value(message) for message in messages[num_known:]]
        return values

    def _shows_tool(self, messages: Sequence[Message]) -> bool:
        return _PROBE_NAME in self._show(self._values(None, messages), tools=(_PROBE_TOOL,), generation_prompt=True)

    def _show(self, values: list[dict[str, Any]], *, tools: Sequence[ToolSpec] = (), generation_prompt: bool) -> str:
        """The rendering of message values; '' if the template refuses them."""
        context = self.values((), tools, generation_prompt=generation_prompt)
        try:
            return self._render({**context, "messages": values}).text
        except AgentError:
            return ""

    def __repr__(self) -> str:
        return f"ChatTemplate({len(self.source)} characters, renders_tools={self.renders_tools})"


def _taken(names: Set[str]) -> str:
    return f"Template arguments {sorted(names)} are set by the conversation itself. Leave them out."


def _known(earlier: Rendered | None, messages: Sequence[Message]) -> Rendered | None:
    """`earlier`, if the messages begin with its messages and it can be resumed."""
    if earlier is None or earlier.shown is None:
        return None
    num_known = len(earlier.messages)
    return earlier if tuple(messages[:num_known]) == tuple(earlier.messages) else None


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}`: marks the model's text, and renders it unchanged."""

    tags = {"generation"}  # noqa: RUF012 - declared by jinja as an instance variable

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=lineno)


def _variables(tree: jinja2.nodes.Template) -> frozenset[str]:
    """Names from outside: never set in the template, or set only after testing whether they are defined."""
    names = list(tree.find_all(jinja2.nodes.Name))
    stored = {name.name for name in names if name.ctx != "load"}
    asked = {
        test.node.name
        for test in tree.find_all(jinja2.nodes.Test)
        if test.name in ("defined", "undefined") and isinstance(test.node, jinja2.nodes.Name)
    }
    return frozenset(jinja2.meta.find_undeclared_variables(tree) - (stored - asked))


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with a fast path for harmless operations that every round of a loop performs."""

    def call(self, context: jinja2.runtime.Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        if is_own(function):
            return function(*args)  # the other arguments are what Jinja gives its own functions
        return super().call(context, function, *args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if type(obj) is jinja2.runtime.LoopContext and not attr.startswith("_"):
            return True
        return super().is_safe_attribute(obj, attr, value)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """Jinja as `transformers` sets it up, because that is what templates are written for."""
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **form: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **form)


def _refuse(message: str) -> str:
    raise jinja2.TemplateError(message)
