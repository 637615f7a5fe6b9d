"""The items of a trajectory: messages, which are context, and choices, which a model has sampled.

Knows: the forms of OpenAI's messages and choices.  Knows not: records, tokens, rewards.
A choice is an object of OpenAI's SDK, one of Ludus's, or the JSON of either; `turn_id` names its recorded turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from ludus.errors import UserError

Message = Mapping[str, Any]
"""A message as a chat completion request has it."""
Messages = list[dict[str, Any]]
Item = Any
"""A message as a mapping, or a choice."""
MessagesAndChoices = list[Item]
Tools = list[dict[str, Any]]
"""Tools as a chat completion request has them."""

# Fields of a reply that a request accepts; not the others of an SDK's message (audio, annotations, …).
_REPLY_KEYS = ("reasoning_content", "reasoning", "tool_calls", "refusal", "name")
_ALLOWED = "a mapping with a 'role', or a Choice of a chat completion"


class Called(pydantic.BaseModel):
    """The function that a tool call names."""

    name: str
    arguments: str


class ToolCall(pydantic.BaseModel):
    """A tool call of a reply."""

    model_config = pydantic.ConfigDict(extra="allow")

    id: str
    type: str = "function"
    function: Called


class Reply(pydantic.BaseModel):
    """The message of a choice."""

    model_config = pydantic.ConfigDict(extra="allow")

    role: str = "assistant"
    content: str | None = None
    tool_calls: list[ToolCall] | None = None
    refusal: str | None = None


class Choice(pydantic.BaseModel):
    """An answer of a model, with the attributes of the SDK's `Choice`; used for trajectories that are read from
    files."""

    model_config = pydantic.ConfigDict(extra="allow")

    message: Reply
    finish_reason: str | None = None
    index: int = 0
    logprobs: Any = None
    turn_id: str | None = None
    """Id of its recorded turn. None: it was not sampled by a model of Ludus."""
    model: str | None = None
    """Name of the model that sampled it. None: not known."""


def is_choice(item: object) -> bool:
    """Whether the item is a choice: any object with `message` and `finish_reason`, or the JSON of one."""
    if isinstance(item, Mapping):
        return "role" not in item and "message" in item
    return hasattr(item, "message") and hasattr(item, "finish_reason")  # the SDK need not be installed


def check_item(item: object, at: str) -> object:
    """The item as stored in a trajectory; the JSON of a choice becomes a `Choice`. Raises UserError for anything
    else."""
    if isinstance(item, Mapping):
        if "role" in item:
            return item
        if is_choice(item):
            return Choice.model_validate(item)
    elif is_choice(item):
        return item
    what = f"{type(item).__name__} {item!r:.100}"
    hint = "append the choice itself (`completion.choices[0]`), of which a message is a part"
    raise UserError(f"{at} is {what}; allowed: {_ALLOWED}; {hint}")


def turn_id(choice: Any) -> str | None:
    """Id of a choice's recorded turn. None: it has none."""
    return _ours(choice, "turn_id")


def sampled_by(choice: Any) -> str | None:
    """Name of the model of Ludus that sampled a choice. None: not known."""
    return _ours(choice, "model")


def strip_logprobs(obj: Any) -> Any:
    """A copy without keys named `logprobs`, at any depth of mappings, lists and pydantic objects, in which they become
    None."""
    if isinstance(obj, Mapping):
        return {name: strip_logprobs(held) for name, held in obj.items() if name != "logprobs"}
    if isinstance(obj, list | tuple):
        each = map(strip_logprobs, obj)
        return tuple(each) if isinstance(obj, tuple) else list(each)
    if not isinstance(obj, pydantic.BaseModel):
        return obj
    held = {**vars(obj), **(obj.__pydantic_extra__ or {})}
    return obj.model_copy(update={name: None if name == "logprobs" else strip_logprobs(held[name]) for name in held})


def convert_litellm_choice_to_openai(litellm_choice: Any) -> Choice:
    """A choice of litellm, converted to the SDK's form, with its turn id."""
    ours = {"turn_id": turn_id(litellm_choice), "model": sampled_by(litellm_choice)}
    return Choice.model_validate({**to_json(litellm_choice), **ours})


def _ours(choice: Any, name: str) -> str | None:
    """A field that only Ludus's gateway adds to a choice."""
    found = _field(choice, name)
    if found is None:  # litellm stores unknown fields in a separate mapping
        found = (_field(choice, "provider_specific_fields") or {}).get(name)
    return None if found is None else str(found)


def _field(choice: Any, name: str) -> Any:
    return choice.get(name) if isinstance(choice, Mapping) else getattr(choice, name, None)


def message_of(item: Any) -> dict[str, Any]:
    """The item as a message for the next request, a new mapping; for a choice, its reply."""
    if isinstance(item, Mapping) and "role" in item:
        return {**item, "content": ""} if item.get("content") is None else dict(item)
    reply = to_json(item)["message"]
    said = {key: reply[key] for key in _REPLY_KEYS if reply.get(key)}
    return {"role": reply.get("role", "assistant"), "content": reply.get("content") or "", **said}


def to_json(item: Any) -> dict[str, Any]:
    """The item as plain JSON, which `check_item` accepts."""
    return (
        dict(item) if isinstance(item, Mapping) else {"message": {}, **item.model_dump(mode="json", exclude_none=True)}
    )
