"""What stands in a trajectory: messages, which are context, and choices, which a model has sampled.

Knows: the shapes of OpenAI's messages and choices, however they were made.  Knows not: records, tokens, rewards.
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

# What a reply holds for a request; the rest of an SDK's message (audio, annotations, …) no request takes.
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
    """An answer of a model, with the attributes of the SDK's own `Choice`; what trajectories are read back with."""

    model_config = pydantic.ConfigDict(extra="allow")

    message: Reply
    finish_reason: str | None = None
    index: int = 0
    logprobs: Any = None
    turn_id: str | None = None
    """The recorded turn that it is. None: no model of Ludus sampled it."""
    model: str | None = None
    """Who sampled it, by the name that requests have. None: whoever it was was not said."""


def is_choice(item: object) -> bool:
    """The item is a choice: any object with `message` and `finish_reason`, or the JSON of one."""
    if isinstance(item, Mapping):
        return "role" not in item and "message" in item
    return hasattr(item, "message") and hasattr(item, "finish_reason")  # the SDK need not be installed


def check_item(item: object, at: str) -> object:
    """The item as it stays in a trajectory; JSON of a choice becomes one. Raises UserError if it is neither form."""
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
    """The recorded turn that a choice is. None: it names none."""
    return _ours(choice, "turn_id")


def sampled_by(choice: Any) -> str | None:
    """The model of Ludus that sampled a choice. None: it does not say."""
    return _ours(choice, "model")


def strip_logprobs(obj: Any) -> Any:
    """A copy without what is called `logprobs`, at any depth of mappings, lists and pydantic's objects, whose own is
    None then."""
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
    """The choice of an answer that litellm read, in the SDK's shape; its turn comes along."""
    ours = {"turn_id": turn_id(litellm_choice), "model": sampled_by(litellm_choice)}
    return Choice.model_validate({**to_json(litellm_choice), **ours})


def _ours(choice: Any, name: str) -> str | None:
    """What only our gateway says of a choice."""
    found = _field(choice, name)
    if found is None:  # litellm keeps what it does not know in a mapping of its own
        found = (_field(choice, "provider_specific_fields") or {}).get(name)
    return None if found is None else str(found)


def _field(choice: Any, name: str) -> Any:
    return choice.get(name) if isinstance(choice, Mapping) else getattr(choice, name, None)


def message_of(item: Any) -> dict[str, Any]:
    """The item as a message of the next request, a new mapping; a choice's is what it answered."""
    if isinstance(item, Mapping) and "role" in item:
        return {**item, "content": ""} if item.get("content") is None else dict(item)
    reply = to_json(item)["message"]
    said = {key: reply[key] for key in _REPLY_KEYS if reply.get(key)}
    return {"role": reply.get("role", "assistant"), "content": reply.get("content") or "", **said}


def to_json(item: Any) -> dict[str, Any]:
    """The item in plain JSON, which `check_item` reads back."""
    return (
        dict(item) if isinstance(item, Mapping) else {"message": {}, **item.model_dump(mode="json", exclude_none=True)}
    )
