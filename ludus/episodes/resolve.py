"""Resolves a request in its session: adds the conversation that it continues, and passes its options to the template.

Knows: a session's turns, which arguments the chat template reads.  Knows not: tokens, engines, who asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ludus.episodes.graph import SessionGraph
from ludus.errors import AgentError
from ludus.text.chat import ChatText
from ludus.types import ChatRequest, Message, Turn

# Names of the template argument that turns thinking on.
_SWITCHES = ("enable_thinking", "thinking")
_NO_THINKING = ("none", "minimal")
_NOT_FOUND = 404


class Resolver:
    """Resolves the requests of one session. Not thread-safe."""

    def __init__(self, text: ChatText, graph: SessionGraph) -> None:
        self._text = text
        self._graph = graph
        self._num_instructions: dict[str, int] = {}
        """By turn id, for turns that had instructions."""

    def resolve(self, request: ChatRequest) -> ChatRequest:
        """The request with all its messages, and with its options as arguments of the template.

        Raises AgentError 404 `turn_not_found` if it continues a turn that is not in this session, and AgentError if it
        forces a call of tools that the continued turn did not have.
        """
        options = _thinking(request, self._text.template.variables)
        if options:  # template_kwargs of the request take precedence
            request = replace(request, template_kwargs={**options, **request.template_kwargs})
        if request.tool_choice == "none" and not self._text.template.renders_tools:
            request = replace(request, tools=())  # they could not act, and the template cannot show them
        if request.prompt is not None:
            return replace(request, messages=(Message("user", self._prompt_text(request.prompt)),))
        if request.continues is None:
            return request
        begun, turn = self.history(request.continues), self._graph.find(request.continues)
        if begun is None or turn is None:
            raise AgentError(
                f"This session has no turn {request.continues!r} to go on with; send the history itself.",
                status=_NOT_FOUND,
                code="turn_not_found",
                param="previous_response_id",
            )
        head, rest = request.messages[: request.num_instructions], request.messages[request.num_instructions :]
        if request.keeps_tools:
            request = _with_tools(request, turn)
        return replace(request, messages=(*head, *begun, *rest))

    def history(self, turn_id: str) -> tuple[Message, ...] | None:
        """The messages of a turn without its instructions, and its reply. None: there is no such turn."""
        turn = self._graph.find(turn_id)
        if turn is None:
            return None
        return (*turn.messages[self._num_instructions.get(turn_id, 0) :], turn.reply)

    def remember(self, turn: Turn, request: ChatRequest) -> None:
        """Keep what is needed to continue `turn` and is not part of it."""
        if request.num_instructions:
            self._num_instructions[turn.id] = request.num_instructions

    def ignored_fields(self, request: ChatRequest) -> tuple[str, ...]:
        """Fields of `request` that have no effect, because the template does not read them."""
        variables = self._text.template.variables
        told = request.reasoning_effort is not None and variables.isdisjoint((*_SWITCHES, "reasoning_effort"))
        counted = request.thinking_budget is not None and "thinking_budget" not in variables
        return ("reasoning_effort",) * told + ("thinking_budget",) * counted

    def _prompt_text(self, prompt: str | tuple[int, ...]) -> str:
        """The prompt as text. Raises AgentError for an unknown token id."""
        if isinstance(prompt, str):
            return prompt
        vocab_size = self._text.tokenizer.vocab_size
        if max(prompt) >= vocab_size:
            raise AgentError(
                f"The token id {max(prompt)} is none of the model's, which go from 0 to {vocab_size - 1}; send the ids "
                "that this model's tokenizer gives",
                code="invalid_value",
                param="prompt",
            )
        return self._text.tokenizer.decode(prompt)


def _with_tools(request: ChatRequest, turn: Turn) -> ChatRequest:
    """The request with the tools of `turn`. Raises AgentError if it forces a call that they do not allow."""
    names = [tool.name for tool in turn.tools]
    wanted = names if request.forced_tool is None else [request.forced_tool]
    if request.tool_choice == "required" and not (wanted and set(wanted) <= set(names)):
        raise AgentError(
            f"Invalid value for 'tool_choice': {request.forced_tool or 'required'!r}. The conversation was begun with "
            f"{'the tools ' + ', '.join(names) if names else 'no tools'}.",
            code="invalid_value",
            param="tool_choice",
        )
    return replace(request, tools=turn.tools)


def _thinking(request: ChatRequest, variables: frozenset[str]) -> Mapping[str, Any]:
    """The request's thinking options, under the names that the template reads."""
    effort, budget = request.reasoning_effort, request.thinking_budget
    if effort is None and budget is None:
        return {}
    options: dict[str, Any] = dict.fromkeys(_SWITCHES, effort not in _NO_THINKING)
    if effort is not None:
        options["reasoning_effort"] = effort
    if budget is not None:
        options["thinking_budget"] = budget
    return {name: option for name, option in options.items() if name in variables}
