"""Calls of tools in sampled tokens, for loops that find them themselves.

Knows: the parsers of `text/`, under verl's names.  Knows not: tools, sessions.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import pydantic

from ludus.compat.members import with_members
from ludus.compat.verl.messages import read_tools
from ludus.compat.verl.tokens import LoopTokenizer
from ludus.episodes.reply import ReplyStream
from ludus.text.parse import parser_for
from ludus.text.parsers.base import Parsed
from ludus.types import Sampling, ToolCall, ToolSpec

logger = logging.getLogger(__name__)
ParserT = TypeVar("ParserT", bound="type[ToolParser]")

_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>")
"""Beside its own end of text what a tokenizer may write where a turn ends."""


class FunctionCall(pydantic.BaseModel):
    """One call as the model wrote it."""

    name: str
    arguments: str
    """JSON text."""
    tool_call_id: str | None = None
    """None: the model's format writes none."""


class ToolParser:
    """Takes replies apart. `get_tool_parser` makes one; one of your own derives from it, and is named by `register`."""

    format: str = "auto"
    """The parser of `text/`; 'auto' is what the tokenizer's template shows."""
    _registry: ClassVar[dict[str, type[ToolParser]]] = {}

    def __init__(self, tokenizer: Any) -> None:
        """tokenizer: of a loop, or one of transformers'."""
        self.tokenizer = tokenizer

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.format!r})"

    @classmethod
    def get_tool_parser(cls, name: str | None, tokenizer: Any) -> ToolParser:
        """The parser of this name. None, or 'auto': the model's own. Raises UserError that names those there are."""
        if name in cls._registry:
            return cls._registry[name](tokenizer)
        parser = ToolParser(tokenizer)
        parser.format = str(name or "auto").replace("-", "_")
        parser_for(_template(tokenizer), parser.format)
        return parser

    @classmethod
    def check(cls, name: str | None) -> None:
        """Raises UserError if `get_tool_parser` would, whatever the tokenizer."""
        if name not in cls._registry:
            parser_for(None, str(name or "auto").replace("-", "_"))

    @classmethod
    def register(cls, name: str) -> Callable[[ParserT], ParserT]:
        """Makes the class the parser `name`, for loops that ask for it and for `rollout.multi_turn.format`; the parser
        of all other agents is `model.tool_parser`."""

        def enter(parser: ParserT) -> ParserT:
            cls._registry[name] = parser
            return parser

        return enter

    @property
    def stop_token_ids(self) -> list[int]:
        """Ids that should end an answer: none, for models end their turn behind a call."""
        return []

    async def extract_tool_calls(
        self, responses_ids: Sequence[int], tools: Sequence[Any] | None = None
    ) -> tuple[str, list[FunctionCall]]:
        """The text beside the calls, and the calls. What cannot be decoded as one stays in the text, and is warned
        of in the log."""
        parsed = self._parse(responses_ids, read_tools(tools))
        for raw in parsed.undecoded:
            logger.warning("Failed to decode tool call: %.200s", raw)
        return parsed.content or "", [self._as_verls(call, tools or ()) for call in parsed.tool_calls]

    def _as_verls(self, call: ToolCall, tools: Sequence[Any]) -> FunctionCall:
        """A call with its arguments spaced as verl's parsers write them. tools: for formats whose calls name them
        otherwise."""
        arguments = json.dumps(json.loads(call.arguments), ensure_ascii=False)
        return FunctionCall(name=call.name, arguments=arguments, tool_call_id=call.id)

    def _parse(self, ids: Sequence[int], tools: Sequence[ToolSpec]) -> Parsed:
        tokenizer = self.tokenizer
        is_own = isinstance(tokenizer, LoopTokenizer) and self.format == "auto"
        parser = tokenizer.text.parser if is_own else parser_for(_template(tokenizer), self.format)
        if not isinstance(tokenizer, LoopTokenizer):
            text = tokenizer.decode(ids, skip_special_tokens=False)
            for end in (getattr(tokenizer, "eos_token", None), *_ENDS):
                text = text.removesuffix(end or "")
            return parser.parse(text, tools=tools)
        stream = ReplyStream(tokenizer.text.tokenizer, Sampling(), parser.stream(tools=tools), markers=parser.markers)
        stream.feed(ids)
        stream.finish()
        message = stream.message()
        return Parsed(message.content, message.reasoning, message.tool_calls, stream.undecoded)


def _template(tokenizer: Any) -> str | None:
    """None: it has none."""
    template = getattr(tokenizer, "chat_template", None)
    return template if isinstance(template, str) else None


@with_members("verl", "experimental.agent_loop.tool_parser.HermesToolParser")
class HermesToolParser(ToolParser):
    """`<tool_call>` around JSON."""

    format = "hermes"


@with_members("verl", "experimental.agent_loop.tool_parser.GptOssToolParser")
class GptOssToolParser(ToolParser):
    """Channels of gpt-oss."""

    format = "gpt_oss"


@with_members("verl", "experimental.agent_loop.tool_parser.Qwen3XMLToolParser")
class Qwen3XMLToolParser(ToolParser):
    """`<function=…>` with an element for each argument."""

    format = "qwen3_coder"

    def _parse_xml_function_call(self, function_call_str: str, tools: Sequence[Any] | None) -> FunctionCall | None:
        """The call of what stands between `<function=` and `</function>`, without a last argument that was cut off.
        None: not even its name is whole."""
        name, closed, arguments = function_call_str.partition(">")
        whole, end, _ = arguments.rpartition("</parameter>")
        text = f"<tool_call>\n<function={name}>\n{whole}{end}\n</function>\n</tool_call>"
        calls = parser_for(None, self.format).parse(text, tools=read_tools(tools)).tool_calls if closed else ()
        return self._as_verls(calls[0], ()) if calls else None


@with_members("verl", "experimental.agent_loop.tool_parser.GLMToolParser")
class GLMToolParser(ToolParser):
    """`<arg_key>` and `<arg_value>`."""

    format = "glm"


@with_members("verl", "experimental.agent_loop.tool_parser.MiniMaxToolParser")
class MiniMaxToolParser(ToolParser):
    """`<minimax:tool_call>`."""

    format = "minimax"


@with_members("verl", "experimental.agent_loop.tool_parser.KimiToolParser")
class KimiToolParser(ToolParser):
    """Sections of Kimi's, whose calls have ids of their own."""

    format = "kimi"

    def _as_verls(self, call: ToolCall, tools: Sequence[Any]) -> FunctionCall:
        """The one tool that an id names in another form than `functions.name:0`, or that needs only what is given."""
        read, specs = super()._as_verls(call, tools), read_tools(tools)
        if any(spec.name == read.name for spec in specs):
            return read
        given = json.loads(read.arguments).keys()
        named = [spec.name for spec in specs if spec.name.lower() in str(call.id).lower().replace("-", "_")]
        fitting = [spec.name for spec in specs if given >= set(spec.parameters.get("required") or ("",))]
        found = next((names for names in (named, fitting) if len(names) == 1), [read.name])
        return read.model_copy(update={"name": found[0]})
