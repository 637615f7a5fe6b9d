"""What a recorder needs of text, in one piece: the tokenizer, the template and the parser of one model.

Knows: how the three are found in a model's folder.  Knows not: engines, sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ludus.errors import UserError
from ludus.text.parse import ToolParser, parser_for
from ludus.text.template import ChatTemplate
from ludus.text.tokenizer import Tokenizer
from ludus.types import ToolSpec


@dataclass(frozen=True)
class ChatText:
    """Chat of one model as text and tokens."""

    tokenizer: Tokenizer
    template: ChatTemplate
    parser: ToolParser
    plain_parser: ToolParser
    """For requests without tools: whatever looks like a call there is the agent's own protocol."""

    @classmethod
    def load(cls, folder: Path, *, chat_template: str | None = None, tool_parser: str = "auto") -> ChatText:
        """The chat text of the model in `folder`.

        chat_template: path of a Jinja file, or name of a shipped one ('chatml-tools'); None takes the model's own.
        tool_parser: 'auto', 'hermes' or 'plain'.
        """
        tokenizer = Tokenizer.load(folder)
        source = _template_source(tokenizer, folder, chat_template)
        return cls(
            tokenizer=tokenizer,
            template=ChatTemplate(source, tokenizer.special_tokens),
            parser=parser_for(source, tool_parser),
            plain_parser=parser_for(source, "plain"),
        )

    def parser_of(self, tools: Sequence[ToolSpec]) -> ToolParser:
        """The parser for replies to a request with these tools."""
        return self.parser if tools else self.plain_parser


def shipped_templates() -> dict[str, str]:
    """Name to source of every chat template that comes with Ludus."""
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
    if chat_template in shipped:
        return shipped[chat_template]
    path = Path(chat_template).expanduser()
    if not path.is_file():
        raise UserError(
            f"No chat template {chat_template!r}: neither a file nor one of the shipped ones "
            f"({', '.join(sorted(shipped))})."
        )
    return path.read_text(encoding="utf-8")
