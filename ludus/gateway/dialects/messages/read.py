"""A request for a message, read and checked.

Knows: the fields of the protocol, which blocks make which messages.  Knows not: how an answer is written.

    blocks of an assistant      thinking  text  tool_use  tool_use    one message with reasoning, content and calls
    blocks of a user            tool_result  tool_result  text        a tool's message for each result, then the user's
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

from ludus.episodes.ids import turn_id_of
from ludus.episodes.names import DEFAULT_MODEL
from ludus.gateway.dialects.base import JsonObject, ParsedRequest, ReadMessages
from ludus.gateway.dialects.fields import (
    as_object,
    join,
    missing,
    numbered,
    read_boolean,
    read_choice,
    read_integer,
    read_kind,
    read_object,
    read_objects,
    read_text,
    require_text,
    unsupported,
    wrong_type,
    wrong_value,
)
from ludus.gateway.dialects.history import check_part, read_content, read_messages
from ludus.gateway.dialects.messages import fields
from ludus.gateway.dialects.sampling import read_sampling
from ludus.gateway.dialects.tools import ToolChoiceRule, ToolUse, read_format, read_function, tool_use
from ludus.types import ChatRequest, Message, ResponseFormat, Sampling, ToolCall, ToolSpec

MODES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
# Claude Code's first block of instructions: an account of the request, which changes with every one.
BILLING = "x-anthropic-billing-header:"
WIRE_NAMES = {"reasoning_effort": "thinking", "thinking_budget": "thinking.budget_tokens"}


def read_request(
    body: JsonObject, defaults: Sampling, read: ReadMessages, *, only_counted: bool = False
) -> ParsedRequest:
    """The request in `body`. only_counted: nothing will be sampled, so `max_tokens` is not required."""
    ignored = dict.fromkeys(fields.REQUEST.check(body))
    _check_context_management(body)
    if body.get("max_tokens") is None and not only_counted:
        raise missing("max_tokens")
    system = _system(body, ignored)
    messages, num_new = read_messages(body, read, lambda entry, at: _message(entry, at, ignored))
    if body["messages"][-1]["role"] == "assistant":
        last = f"messages[{len(body['messages']) - 1}]"
        raise unsupported(last, "An answer cannot be begun for the model; end with a user's message.")
    continues = _thread(body)
    use = _tool_use(body, ignored, is_thread=continues is not None)
    effort, budget = _thinking(body, ignored)
    request = ChatRequest(
        messages=(*system, *messages),
        tools=use.tools,
        sampling=read_sampling(body, defaults, limits=fields.LIMITS, stop="stop_sequences"),
        tool_choice=use.tool_choice,
        forced_tool=use.forced_tool,
        parallel_tool_calls=use.parallel_tool_calls,
        response_format=_format(body),
        reasoning_effort=effort,
        thinking_budget=budget,
        continues=continues,
        keeps_tools=continues is not None,
        template_kwargs=read_object(body, "chat_template_kwargs"),
    )
    return ParsedRequest(
        request=request,
        model=read_text(body, "model") or DEFAULT_MODEL,
        stream=read_boolean(body, "stream", False),
        ignored=tuple(ignored),
        wire_names=WIRE_NAMES,
        num_new_messages=num_new,
    )


def _check_context_management(body: JsonObject) -> None:
    """Accepts only edits that keep everything: any other would change what the model sees."""
    for at, edit in read_objects(read_object(body, "context_management"), "edits", at="context_management"):
        if edit.get("type") != "clear_thinking_20251015" or edit.get("keep") != "all":
            raise unsupported(at, "Send the history that the model is to see.")


def _thread(body: JsonObject) -> str | None:
    """The turn after which a conversation kept in the session continues. None: the request holds all of it."""
    thread = read_object(body, "thread")
    if not thread:
        return None
    if read_kind(thread, fields.THREADS, {}, at="thread") == "create":
        return None
    for name in fields.KEPT_BY_THREADS:
        if body.get(name) is not None:
            raise unsupported(name, "A thread keeps what it was created with; leave it out.")
    return turn_id_of(require_text(thread, "previous_message_id", at="thread"))


# Messages


def _system(body: JsonObject, ignored: dict[str, None]) -> tuple[Message, ...]:
    value = body.get("system")
    if value is None:
        return ()
    if isinstance(value, list):
        blocks = [block for _, block in read_objects(body, "system")]
        kept = [block for block in blocks if not str(block.get("text")).startswith(BILLING)]
        if len(kept) < len(blocks):
            ignored["system.x-anthropic-billing-header"] = None
        value = kept
    text = read_content(value, "system", fields.TEXTS, ignored)
    return (Message("system", text),) if text else ()


def _message(entry: JsonObject, at: str, ignored: dict[str, None]) -> tuple[Message, ...]:
    fields.MESSAGE.check(entry, at=at)
    role, content, param = require_text(entry, "role", at=at), entry.get("content"), join(at, "content")
    if role not in fields.BLOCKS_OF:
        raise wrong_value(role, ", ".join(fields.BLOCKS_OF), join(at, "role"))
    if content is None:
        raise missing(param)
    if isinstance(content, str):
        return (Message(role, content),)  # type: ignore[arg-type]  # a key of BLOCKS_OF
    if not isinstance(content, list):
        raise wrong_type(content, "a string or an array of blocks", param)
    blocks = [(block_at, as_object(block, block_at)) for block_at, block in numbered(param, content)]
    for block_at, block in blocks:
        check_part(block, block_at, fields.BLOCKS_OF[role], ignored)
    if role == "assistant":
        return (_assistant(blocks),)
    if role == "system":
        return (Message("system", "".join([require_text(block, "text", at=at) for at, block in blocks])),)
    return _user(blocks, ignored)


def _assistant(blocks: Sequence[tuple[str, JsonObject]]) -> Message:
    texts, thoughts = (
        [require_text(block, kind, at=at) for at, block in blocks if block["type"] == kind]
        for kind in ("text", "thinking")
    )
    calls = [_call(block, at) for at, block in blocks if block["type"] == "tool_use"]
    return Message(
        "assistant",
        content="".join(texts) if texts or not calls else None,
        reasoning="".join(thoughts) if thoughts else None,
        tool_calls=tuple(calls),
    )


def _call(block: JsonObject, at: str) -> ToolCall:
    # The token graph compares arguments by value, so this text never replaces a sampled one.
    arguments = json.dumps(as_object(block.get("input", {}), join(at, "input")), ensure_ascii=False)
    return ToolCall(require_text(block, "id", at=at), require_text(block, "name", at=at), arguments)


def _user(blocks: Sequence[tuple[str, JsonObject]], ignored: dict[str, None]) -> tuple[Message, ...]:
    """Each tool result as a tool message, and the text between them as user messages."""
    messages: list[Message] = []
    for is_text, some in itertools.groupby(blocks, key=lambda block: block[1]["type"] == "text"):
        if is_text:
            messages.append(Message("user", "".join([require_text(block, "text", at=at) for at, block in some])))
            continue
        for at, block in some:
            result = read_content(block.get("content"), join(at, "content"), fields.TEXTS, ignored)
            messages.append(Message("tool", result, tool_call_id=require_text(block, "tool_use_id", at=at)))
    return tuple(messages) or (Message("user", ""),)


# Tools, thinking and the form of the answer


def _tool_use(body: JsonObject, ignored: dict[str, None], *, is_thread: bool) -> ToolUse:
    """is_thread: the session holds the tools, and checks later whether they satisfy the choice."""
    tools = tuple([_tool(tool, at, ignored) for at, tool in read_objects(body, "tools")])
    choice, parallel = _choice(read_object(body, "tool_choice"))
    if is_thread:
        return ToolUse((), choice.mode, choice.forced, parallel)
    return tool_use(tools, choice, parallel=parallel)


def _choice(choice: JsonObject) -> tuple[ToolChoiceRule, bool]:
    """The tool choice, and whether one answer may hold several calls."""
    if not choice:
        return ToolChoiceRule(), True
    kind = read_kind(choice, fields.TOOL_CHOICES, {}, at="tool_choice")
    forced = require_text(choice, "name", at="tool_choice") if kind == "tool" else None
    parallel = not read_boolean(choice, "disable_parallel_tool_use", False, at="tool_choice")
    return ToolChoiceRule(MODES[kind], forced), parallel  # type: ignore[arg-type]  # a value of MODES


def _tool(tool: JsonObject, at: str, ignored: dict[str, None]) -> ToolSpec:
    kind = read_text(tool, "type", at=at)
    if kind not in (None, "custom"):
        raise unsupported(join(at, "type"), f"There is no tool {kind!r} here; offer one of your own.")
    ignored.update(dict.fromkeys(fields.TOOL.check(tool, at=at)))
    return read_function(tool, at, schema="input_schema")


def _thinking(body: JsonObject, ignored: dict[str, None]) -> tuple[str | None, int | None]:
    """The thinking effort, and the most tokens for thinking."""
    config = read_object(body, "output_config")
    effort = read_choice(config, "effort", fields.EFFORTS, at="output_config")
    thinking = read_object(body, "thinking")
    if not thinking:
        return effort, None
    kind = read_kind(thinking, fields.THINKING, ignored, at="thinking")
    if kind == "enabled":
        return effort, read_integer(thinking, "budget_tokens", 1, low=1, at="thinking")
    return ("none" if kind == "disabled" else effort), None


def _format(body: JsonObject) -> ResponseFormat | None:
    config = read_object(body, "output_config")
    fields.OUTPUT_CONFIG.check(config, at="output_config")
    if config.get("format") is not None:
        return read_format(read_object(config, "format", at="output_config"), "output_config.format")
    # The field's name in the beta of the API.
    form = read_object(body, "output_format")
    return read_format(form, "output_format") if form else None
