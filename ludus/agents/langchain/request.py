"""Converts a graph's call of its model to a request for the recorder.

Knows: LangChain's ways to name tools, formats and sampling.  Knows not: messages, answers, threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from ludus.agents.langchain.messages import to_messages
from ludus.errors import UserError
from ludus.gateway.dialects.sampling import SAMPLING_FIELDS, read_sampling
from ludus.gateway.dialects.tools import ToolChoiceRule, read_format, read_function, tool_use
from ludus.settings import did_you_mean
from ludus.types import ChatRequest, Sampling

SAMPLING_NAMES = frozenset([*SAMPLING_FIELDS, "max_tokens"])
_ALWAYS_THERE = frozenset(["logprobs"])
"""Keys of an agent loop's `sampling_params` that ask for something that is always recorded."""
_REQUIRED = ("any", "required", True)


def to_request(
    messages: Sequence[BaseMessage],
    asked: Mapping[str, Any],
    *,
    defaults: Sampling,
    stop: Sequence[str] | None,
    agent: str,
) -> ChatRequest:
    """asked: keyword arguments of the call, including bound ones and those of the model itself.

    Raises UserError for an unknown argument, AgentError for a value that is not allowed.
    """
    asked = dict(asked)
    tools = tuple(read_function(tool["function"], "tools") for tool in asked.pop("tools", None) or ())
    use = tool_use(tools, _choice(asked.pop("tool_choice", None)), parallel=asked.pop("parallel_tool_calls", True))
    response_format = asked.pop("response_format", None)
    params = {name: value for name, value in asked.pop("sampling_params", {}).items() if name not in _ALWAYS_THERE}
    sampling = {**params, **asked}
    if stop is not None:
        sampling["stop"] = list(stop)
    _check_known(sampling)
    return ChatRequest(
        messages=to_messages(messages),
        tools=use.tools,
        tool_choice=use.tool_choice,
        forced_tool=use.forced_tool,
        parallel_tool_calls=use.parallel_tool_calls,
        response_format=None
        if response_format is None
        else read_format(response_format, "response_format", nested="json_schema"),
        sampling=read_sampling(sampling, defaults),
        agent=agent,
    )


def _choice(value: Any) -> ToolChoiceRule:
    if value is None or value in ("auto", False):
        return ToolChoiceRule()
    if value in _REQUIRED:
        return ToolChoiceRule("required")
    if value == "none":
        return ToolChoiceRule("none")
    if isinstance(value, Mapping):
        function = value.get("function")
        value = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(value, str):
        raise UserError(
            f"tool_choice={value!r:.200} is none; allowed: 'auto', 'none', 'any', 'required', the name of a tool, or "
            "{'type': 'function', 'function': {'name': …}}"
        )
    return ToolChoiceRule("required", value)


def _check_known(sampling: Mapping[str, Any]) -> None:
    for name in sampling:
        if name not in SAMPLING_NAMES and name != "stop":
            known = sorted([*SAMPLING_NAMES, "stop", "tools", "tool_choice", "parallel_tool_calls", "response_format"])
            hint = did_you_mean(name, known)
            raise UserError(
                f"the model was called with the unknown argument {name!r}{hint} It takes {', '.join(known)}"
            )
