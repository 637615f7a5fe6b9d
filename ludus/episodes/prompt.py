"""Chooses the token ids of a request's prompt: the earlier tokens plus what is new, or, with a reason, a fork.

Knows: how the template extends a conversation, the session's graph.  Knows not: engines, limits, streaming.
Invariant: sampled tokens are never tokenized again. If they cannot be kept, the whole prompt is rendered and encoded
anew, and the turn has the reason of the fork.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from ludus.episodes.graph import SessionGraph
from ludus.errors import AgentError
from ludus.text.chat import ChatText
from ludus.text.incremental import RenderedTurn, continuation
from ludus.text.template import Rendered, Shown
from ludus.types import ChatRequest, ForkReason, Message, Turn

_FORK_REASONS: Mapping[str, ForkReason] = {reason: reason for reason in get_args(ForkReason)}


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of a turn, and the turn's two edges."""

    ids: tuple[int, ...]
    rendered: Rendered
    """The messages as the template renders them; `ids` decodes to this, except for replies kept as sampled."""
    follows: str | None = None
    """The turn that it follows. None: it is a root of credit."""
    prefix: str | None = None
    """The turn whose tokens `ids` begins with. None: the graph looks for shared tokens itself."""
    fork: ForkReason | None = None
    """Why `ids` does not extend the turn that it follows. None: it does, or it follows none."""

    @property
    def text(self) -> str:
        return self.rendered.text


class Prompts:
    """Chooses the prompts of one session. Not thread-safe."""

    def __init__(self, text: ChatText, graph: SessionGraph, *, context_length: int) -> None:
        self.text = text
        self._graph = graph
        self.context_length = context_length
        self._max_chars = context_length * text.tokenizer.longest_token
        self._asked: dict[str, _Asked] = {}
        self._leaves: dict[str, Rendered] = {}
        """The rendered prompts of turns that no other turn follows yet; the next turn most often continues one."""
        self.num_encoded_chars = 0
        """Characters that were tokenized."""
        self.num_rendered_messages = 0
        """Messages that were rendered; the text of the others was known from the turn before."""
        self._stop_texts = frozenset(text.tokenizer.decode((token,)) for token in text.tokenizer.stop_ids)

    def choose(self, request: ChatRequest) -> Prompt:
        """The prompt of `request`. Raises AgentError if the template refuses the messages or the tools, or the text is
        too long for the context."""
        if request.prompt is not None:
            return self._choose_raw(request, request.prompt)
        follows = self._graph.match(request.messages, request.agent).follows
        earlier = None if follows is None else self._rendered_turn(follows)
        rendered = self._render(request, earlier)
        if follows is None or earlier is None:
            return Prompt(self._encode(rendered.text), rendered)
        added = continuation(
            self.text.template,
            earlier,
            request.messages,
            request.tools,
            request.template_kwargs,
            self._stop_texts,
            rendered,
        )
        path_ids = self._graph.path_ids(follows.id)
        if added in _FORK_REASONS:
            return self._fork(rendered, follows, path_ids, _FORK_REASONS[added])
        return Prompt(path_ids + self._encode(added, after=path_ids[-1]), rendered, follows.id, follows.id)

    def remember(self, turn: Turn, prompt: Prompt, template_kwargs: Mapping[str, Any]) -> None:
        """Keep what is needed to extend `turn` and is not part of it."""
        rendered, base, added = prompt.rendered, None, prompt.text
        if turn.follows is not None:
            base_text = self._rendered(turn.follows, ()).text
            if prompt.text.startswith(base_text):
                base, added = turn.follows, prompt.text[len(base_text) :]
            self._leaves.pop(turn.follows, None)
        self._asked[turn.id] = _Asked(base, added, template_kwargs, rendered.shown)
        self._leaves[turn.id] = rendered

    def _choose_raw(self, request: ChatRequest, prompt: str | tuple[int, ...]) -> Prompt:
        """A prompt given as text or tokens, without template; it extends a turn whose text or tokens it begins with."""
        latest = self._graph.match(request.messages, request.agent).follows
        text = prompt if isinstance(prompt, str) else self.text.tokenizer.decode(prompt)
        rendered = Rendered(request.messages, text)
        if isinstance(prompt, str) and latest is not None:
            path_ids = self._graph.path_ids(latest.id)
            begun = self.text.tokenizer.decode(path_ids)
            if prompt.startswith(begun) and len(prompt) > len(begun):
                ids = path_ids + self._encode(prompt[len(begun) :], after=path_ids[-1])
                return Prompt(ids, rendered, latest.id, latest.id)
        ids = self._encode(prompt) if isinstance(prompt, str) else prompt
        extended = self._graph.begun_with(ids)
        if extended is not None:
            return Prompt(ids, rendered, extended.id, extended.id)
        return Prompt(ids, rendered) if latest is None else Prompt(ids, rendered, latest.id, None, "edit")

    def _render(self, request: ChatRequest, earlier: RenderedTurn | None) -> Rendered:
        rendered = self.text.template.extend(
            None if earlier is None else earlier.prompt,
            request.messages,
            request.tools,
            template_kwargs=request.template_kwargs,
        )
        self.num_rendered_messages += rendered.num_new_messages
        return rendered

    def _encode(self, text: str, *, after: int | None = None) -> tuple[int, ...]:
        if len(text) > self._max_chars:
            # Checked before tokenizing, which takes seconds per megabyte and would hold up all other requests.
            raise AgentError(
                f"the messages make {len(text):,} characters, which no {self.context_length} tokens hold, "
                "and the model's context has no more; shorten the history",
                code="context_length_exceeded",
                param="messages",
            )
        self.num_encoded_chars += len(text)
        return self.text.tokenizer.encode(text, after=after)

    def _fork(self, rendered: Rendered, follows: Turn, path_ids: tuple[int, ...], reason: ForkReason) -> Prompt:
        ids = self._encode(rendered.text)
        if ids[: len(path_ids)] == path_ids:
            return Prompt(ids, rendered, follows.id, follows.id)
        if rendered.text.startswith(self.text.tokenizer.decode(path_ids)):
            reason = "retokenised"
        return Prompt(ids, rendered, follows.id, None, reason)

    def _rendered_turn(self, turn: Turn) -> RenderedTurn:
        prompt = self._rendered(turn.id, turn.messages)
        return RenderedTurn(
            messages=prompt.messages,
            tools=turn.tools,
            template_kwargs=self._asked[turn.id].template_kwargs,
            prompt_text=prompt.text,
            reply=turn.reply,
            reply_text=self.text.tokenizer.decode(turn.sampled.token_ids),
            shown=prompt.shown,
        )

    def _rendered(self, turn_id: str, messages: tuple[Message, ...]) -> Rendered:
        """The prompt of a turn with these messages, as the template rendered it then."""
        if turn_id in self._leaves:
            return self._leaves[turn_id]
        parts: list[str] = []
        at: str | None = turn_id
        while at is not None:
            parts.append(self._asked[at].added)
            at = self._asked[at].base
        return Rendered(messages, "".join(reversed(parts)), self._asked[turn_id].shown)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The text of a prompt, stored as an addition, so that the prompts of n turns take the text of n turns, not n^2."""

    base: str | None
    """The turn whose prompt text this one begins with. None: `added` is the whole text."""
    added: str
    template_kwargs: Mapping[str, Any]
    shown: Shown | None
    """Where rendering can be continued. None: nowhere."""
