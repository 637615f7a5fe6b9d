"""Builds the tokens of an append-only conversation, with mask and logprobs, as in the loops of verl 0.9.

Knows: the model's template and tokenizer.  Knows not: sessions, engines.
Invariant: existing tokens are never changed, and appended tokens are those that the recorder would append.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ludus.compat.members import with_members
from ludus.compat.verl.messages import read_messages, read_tools
from ludus.compat.verl.tokens import LoopTokenizer
from ludus.errors import UserError

MergeKind = Literal["assistant", "context"]
_ROLES = frozenset({"tool", "user", "system", "assistant"})


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The tokens after something was appended, and how many of them are new."""

    token_ids: list[int]
    appended_token_count: int
    kind: MergeKind = "context"
    """'assistant': the new tokens were sampled by the model."""
    inserted_token_ids: list[int] = field(default_factory=list)
    """Always empty here: the template's tokens between an answer and the next message count as appended."""
    removed_prefix_token_count: int = 0
    """Always 0 here: no tokens are removed."""


@with_members("verl", "utils.tokenizer.continuous_token.ContinuousTokenBuilder")
class ContinuousTokenBuilder:
    """Renders the first prompt, and appends to it."""

    def __init__(
        self,
        tokenizer: LoopTokenizer,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        allowed_append_roles: Collection[str] | None = None,
    ) -> None:
        """allowed_append_roles: roles whose messages may be appended. None: all."""
        self.tokenizer = tokenizer
        self.chat_template_kwargs = dict(chat_template_kwargs or {})
        self.allowed_append_roles = _ROLES if allowed_append_roles is None else frozenset(allowed_append_roles)
        if unknown := sorted(self.allowed_append_roles - _ROLES):
            raise UserError(f"allowed_append_roles has {unknown}; allowed: {', '.join(sorted(_ROLES))}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.tokenizer!r})"

    @classmethod
    def supports_multimodal(cls) -> bool:
        """Never: models here read text alone."""
        return False

    def build_initial_tokens(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        images: Sequence[Any] | None = None,
        videos: Sequence[Any] | None = None,
        audios: Sequence[Any] | None = None,
        mm_inputs_out: dict[str, Any] | None = None,
    ) -> list[int]:
        """The first prompt, ready for an answer. Raises UserError for images, videos and audios.

        mm_inputs_out: stays as it is; what a processor would say of them.
        """
        refuse_media(images=images, videos=videos, audios=audios)
        ids = self.tokenizer.apply_chat_template(
            messages, tools, add_generation_prompt=True, **self.chat_template_kwargs
        )
        assert not isinstance(ids, str), "ids were asked for"
        return ids

    def tokenize_context_incremental_messages(
        self,
        previous_messages: Sequence[Mapping[str, Any]],
        updated_messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
    ) -> list[int]:
        """The tokens that the new messages add after an answer that ended with an end-of-turn token."""
        ends = sorted(self.tokenizer.text.tokenizer.stop_ids)[:1]
        return self._added(ends, previous_messages, updated_messages, tools)

    def merge_context_tokens(
        self,
        previous_messages: Sequence[Mapping[str, Any]],
        updated_messages: Sequence[Mapping[str, Any]],
        runtime_token_ids: Sequence[int],
        *,
        tools: Sequence[Any] | None = None,
    ) -> MergeResult:
        """The tokens extended by those of the new messages and the generation prompt; a cut answer is closed first.
        Raises UserError if an earlier message has changed."""
        added = self._added(runtime_token_ids, previous_messages, updated_messages, tools)
        return MergeResult([*runtime_token_ids, *added], len(added))

    # the same under their names in verl 0.9.0
    tokenize_non_assistant_incremental_messages = tokenize_context_incremental_messages
    merge_non_assistant_tokens = merge_context_tokens

    def merge_assistant_tokens(
        self, runtime_token_ids: Sequence[int], assistant_token_ids: Sequence[int]
    ) -> MergeResult:
        """The tokens extended by an answer of the model."""
        return MergeResult([*runtime_token_ids, *assistant_token_ids], len(assistant_token_ids), "assistant")

    def align_response_metadata(
        self,
        merge_result: MergeResult,
        response_mask: Sequence[int],
        response_logprobs: Sequence[float] | None = None,
        *,
        assistant_logprobs: Sequence[float] | None = None,
    ) -> tuple[list[int], list[float] | None]:
        """Mask and logprobs extended for the new tokens: by 1 and the logprobs of an answer, else by zeros."""
        num_kept = len(response_mask) - merge_result.removed_prefix_token_count
        num_zeros, num_ones = len(merge_result.inserted_token_ids), merge_result.appended_token_count
        if merge_result.kind == "context":
            num_zeros, num_ones = num_zeros + num_ones, 0
        mask = [*response_mask[:num_kept], *[0] * num_zeros, *[1] * num_ones]
        if response_logprobs is None:
            if assistant_logprobs is not None:
                raise UserError("assistant_logprobs are given without response_logprobs; give those of before, or []")
            return mask, None
        if num_ones != len(assistant_logprobs or ()) and merge_result.kind == "assistant":
            raise UserError(f"assistant_logprobs has {len(assistant_logprobs or ())} numbers for {num_ones} tokens")
        said = list(assistant_logprobs or ()) if merge_result.kind == "assistant" else []
        return mask, [*response_logprobs[:num_kept], *[0.0] * num_zeros, *said]

    def _added(
        self,
        runtime_token_ids: Sequence[int],
        previous_messages: Sequence[Mapping[str, Any]],
        updated_messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
    ) -> list[int]:
        num_known = len(previous_messages)
        if list(updated_messages[:num_known]) != list(previous_messages):
            raise UserError("messages of before are changed or gone; a conversation in tokens can only be gone on with")
        read = read_messages(updated_messages)
        new = read[num_known:]
        if not new:
            return []
        if wrong := next((each.role for each in new if each.role not in self.allowed_append_roles), None):
            raise UserError(f"a message of {wrong!r} is appended; allowed: {sorted(self.allowed_append_roles)}")
        if new[-1].role == "assistant":
            raise UserError("the last message that is appended is the model's; append what it is to answer")
        return list(
            self.tokenizer.text.follow_up_ids(
                runtime_token_ids,
                new,
                calls=read[num_known - 1].tool_calls if num_known and new[0].role == "tool" else (),
                tools=read_tools(tools),
                template_kwargs=self.chat_template_kwargs,
            )
        )


def refuse_media(**given: Any) -> None:
    """Raises UserError, which names the argument, if one is neither None nor empty."""
    for name, value in given.items():
        if value:
            raise UserError(f"{name} cannot be given: models here read text alone")
