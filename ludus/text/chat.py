"""The text side of one model, as a recorder needs it: tokenizer, chat template and parser in one object.

Knows: how the three are found in a model's folder.  Knows not: engines, sessions.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from ludus.errors import AgentError, UserError
from ludus.text.constraint import Constraints
from ludus.text.parse import PARSERS, parser_for
from ludus.text.parsers.base import ToolParser
from ludus.text.parsers.plain import plain_parser
from ludus.text.template import ChatTemplate
from ludus.text.tokenizer import Tokenizer
from ludus.types import ChatRequest, Message, ToolCall

logger = logging.getLogger(__name__)

_ANSWER = "REPLYSTANDSHERE"
_TEMPLATE_OPENINGS = ("{%", "{{", "{#")


@dataclass(frozen=True)
class ChatText:
    """Converts chats of one model between messages, text and tokens."""

    tokenizer: Tokenizer
    template: ChatTemplate
    parser: ToolParser

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] = {},
        tool_parser: str = "auto",
    ) -> ChatText:
        """The chat text of the model in `folder`.

        chat_template: path of a Jinja file, name of a shipped template ('chatml-tools') or of another template of the
        model ('tool_use'), or a template's text. None: the model's own.
        chat_template_kwargs: template arguments of every conversation; a warning names those that it does not read.
        tool_parser: 'auto', or a name of `PARSERS`.
        """
        tokenizer = Tokenizer.load(folder)
        source = _template_source(tokenizer, folder, chat_template)
        template = ChatTemplate(source, tokenizer.special_tokens, default_kwargs=chat_template_kwargs)
        if unread := sorted(chat_template_kwargs.keys() - template.variables):
            logger.warning("the chat template does not read %s of model.chat_template_kwargs", ", ".join(unread))
        return cls(tokenizer=tokenizer, template=template, parser=parser_for(source, tool_parser))

    @cached_property
    def constraints(self) -> Constraints:
        """Compiles grammars for this tokenizer."""
        return Constraints(self.tokenizer)

    def follow_up(
        self, messages: Sequence[Message], stop_ids: Iterable[int], *, calls: Sequence[ToolCall] = (), **template: Any
    ) -> str:
        """The template's text after an answer of the model if these messages follow: the rest of the answer's end after
        the one of `stop_ids` that ended it, the messages, and the start of the next answer. System messages are not
        repeated.

        calls: the answer's tool calls, for templates that end an answer with calls differently, or refuse tool results
        without calls.  template: as in `ChatTemplate.render`.
        """
        stops = tuple(self.tokenizer.decode((token,)) for token in stop_ids)
        if calls and (after := self._after_calls(messages, bool(stops), calls, template)) is not None:
            return after
        history = (Message("user", "x"), Message("assistant", _ANSWER), *messages)
        _, mark, tail = self.template.render(history, **template).partition(_ANSWER)
        if not mark:
            raise UserError("the chat template shows no answers of the model, so nothing can be said after one")
        stop = next(filter(tail.lstrip().startswith, stops), None)
        return tail if stop is None else tail.partition(stop)[2]

    def _after_calls(
        self, messages: Sequence[Message], is_ended: bool, calls: Sequence[ToolCall], template: dict[str, Any]
    ) -> str | None:
        """The same after an answer that ends with calls. None: the template does not show where they end."""
        *others, last = calls
        marked = (*others, replace(last, arguments=json.dumps({_ANSWER: _ANSWER})))
        history = (Message("user", "x"), Message("assistant", "", tool_calls=marked))
        try:
            alone = self.template.render(history, **{**template, "generation_prompt": False})
            shown = self.template.render((*history, *messages), **template)
        except AgentError:
            return None
        if _ANSWER not in alone or _ANSWER not in shown:  # it shows no calls
            return None
        alone, after = (text.rpartition(_ANSWER)[2] for text in (alone, shown))
        texts = filter(None, (self.tokenizer.decode((token,)) for token in self.tokenizer.stop_ids))
        ends = [(at, at + len(stop)) for stop in texts if (at := alone.find(stop)) >= 0]
        if not ends or not after.startswith(alone[: min(ends)[1]]):
            return None
        return after[min(ends)[int(is_ended)] :]

    def follow_up_ids(
        self, answer_ids: Sequence[int], messages: Sequence[Message], *, calls: Sequence[ToolCall] = (), **template: Any
    ) -> tuple[int, ...]:
        """The token ids after an answer; sampled tokens are not tokenized again."""
        last = answer_ids[-1] if answer_ids else None
        ended_by = (last,) if last is not None and last in self.tokenizer.stop_ids else ()
        return self.tokenizer.encode(self.follow_up(messages, ended_by, calls=calls, **template), after=last)

    def parser_of(self, request: ChatRequest) -> ToolParser:
        """The parser for replies to `request`. If no tool may be called, text that looks like a call belongs to the
        agent's own protocol, and is content. The continuation of a raw prompt is only text."""
        if request.prompt is not None:
            return plain_parser()
        if not request.tools or request.tool_choice == "none":
            return self.parser.plain
        if self.parser.name == "plain":
            _tell_unread()
        return self.parser


@cache
def _tell_unread() -> None:
    """Once in a process: the agent would wait for calls that the model has made."""
    logger.warning(
        "tools are offered, and nothing in the model's chat template says how it writes calls, so they stay text; "
        "model.tool_parser names the format: %s",
        ", ".join(PARSERS),
    )


def is_template_source(text: str) -> bool:
    """Whether it is the text of a chat template, and not a path or a name."""
    return any(opening in text for opening in _TEMPLATE_OPENINGS)


def shipped_templates() -> dict[str, str]:
    """The chat templates shipped with Ludus: source by name."""
    folder = resources.files("ludus.text") / "templates"
    files = (file for file in folder.iterdir() if file.name.endswith(".jinja"))
    return {file.name.removesuffix(".jinja"): file.read_text(encoding="utf-8") for file in files}


def _template_source(tokenizer: Tokenizer, folder: Path, chat_template: str | None) -> str:
    shipped = shipped_templates()
    if chat_template is None:
        if tokenizer.chat_template is None:
            raise UserError(
                f"The model in {str(folder)!r} has no chat template. Set 'chat_template' to the path of one, "
                f"or to a shipped one: {', '.join(sorted(shipped))}."
            )
        return tokenizer.chat_template
    if chat_template in (known := {**shipped, **tokenizer.other_templates}):
        return known[chat_template]
    if is_template_source(chat_template):
        return chat_template
    path = Path(chat_template).expanduser()
    if not path.is_file():
        raise UserError(
            f"No chat template {chat_template!r}: neither a file nor one of the shipped ones or the model's own "
            f"({', '.join(sorted(known))}), nor the text of one, which has a Jinja tag."
        )
    return path.read_text(encoding="utf-8")
