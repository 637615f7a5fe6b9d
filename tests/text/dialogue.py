"""A scripted recorder of one conversation: what the engine saw, and the turn to be extended.

Every extension is made twice, from where the last rendering stood and from the start; both must be one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from ludus.text.incremental import RenderedTurn, continuation
from ludus.text.parse import opens_reasoning, parser_for
from ludus.text.template import ChatTemplate
from ludus.types import ForkReason, Message, ToolSpec

REASONS = frozenset(get_args(ForkReason))
STOPS = {"llama3": "<|eot_id|>", "gemma": "<end_of_turn>", "mistral": "</s>", "r1": "<|end|>"}
"""The text that ends a turn, for templates where it is not '<|im_end|>'."""


@dataclass
class Dialogue:
    """One conversation as a recorder leads it: what the engine has seen, and the turn to be extended."""

    template: ChatTemplate
    stop: str = "<|im_end|>"
    tools: Sequence[ToolSpec] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    seen: str = ""
    turn: RenderedTurn | None = None

    def ask(self, *messages: Message) -> str:
        """The first prompt."""
        shown = self.template.extend(None, messages, self.tools, template_kwargs=self.template_kwargs)
        self.seen, kwargs = shown.text, self.template_kwargs
        self.turn = RenderedTurn(messages, self.tools, kwargs, self.seen, Message("assistant"), "", shown.shown)
        return self.seen

    def sample(self, sampled: str, *, stop: str | None = None) -> Message:
        """The model's reply, read by the template's parser; `sampled` with the stop token's text."""
        assert self.turn is not None
        text = sampled.removesuffix(self.stop if stop is None else stop)
        parser = parser_for(self.template.source)
        reply = parser.parse(text, in_reasoning=opens_reasoning(self.turn.prompt_text), call_seed=self.seen).message
        self.turn = replace(self.turn, reply=reply, reply_text=sampled)
        self.seen += sampled
        return reply

    def extend(self, *messages: Message, tools: Sequence[ToolSpec] | None = None, **kwargs: Any) -> str | ForkReason:
        """What is appended for these messages, or the reason of a fork, after which the dialogue starts anew."""
        assert self.turn is not None
        used, kwargs = self.tools if tools is None else tools, kwargs or dict(self.template_kwargs)
        shown = self.template.extend(self.turn.prompt, messages, used, template_kwargs=kwargs)
        assert shown.text == self.template.render(messages, used, template_kwargs=kwargs)
        added = continuation(self.template, self.turn, messages, used, kwargs, {self.stop}, shown)
        afresh = replace(self.turn, shown=None)
        assert added == continuation(self.template, afresh, messages, used, kwargs, {self.stop})
        self.seen = shown.text if added in REASONS else self.seen + added
        self.tools = used
        self.turn = RenderedTurn(messages, used, kwargs, shown.text, Message("assistant"), "", shown.shown)
        return added
