"""The model's text as loops know it from transformers: `apply_chat_template`, `encode`, `decode`.

Knows: the run's tokenizer and template.  Knows not: transformers, sessions, engines.
Invariant: what it renders and encodes is what the recorder would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

from ludus.compat.verl.messages import read_messages, read_tools
from ludus.errors import UserError
from ludus.text.chat import ChatText
from ludus.types import Message

_USER = {"role": "user", "content": "x"}
_AS_IT_IS: Mapping[str, tuple[Any, ...]] = {
    "return_dict": (False,),
    "return_tensors": (),
    "padding": (False, "do_not_pad"),
    "truncation": (False, "do_not_truncate"),
    "max_length": (),
    "stride": (0,),
    "return_attention_mask": (True,),
    "return_assistant_tokens_mask": (False,),
    "add_special_tokens": (True, False),
    "clean_up_tokenization_spaces": (False,),
}
"""Options of transformers' tokenizers, with the values that mean what is done here; None is one of each."""


class LoopTokenizer:
    """One chat model's tokenizer, with the names of transformers' that loops use."""

    def __init__(self, text: ChatText) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"LoopTokenizer({self.text.tokenizer!r})"

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        ids = self.encode(text, **options)
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    def __len__(self) -> int:
        return self.text.tokenizer.vocab_size

    @property
    def vocab_size(self) -> int:
        return self.text.tokenizer.vocab_size

    @property
    def chat_template(self) -> str:
        return self.text.template.source

    @property
    def eos_token_id(self) -> int | None:
        """None: the tokenizer names none."""
        return self._id("eos_token")

    @property
    def pad_token_id(self) -> int | None:
        """None: neither a padding nor an end-of-turn token is named."""
        return self.eos_token_id if self._id("pad_token") is None else self._id("pad_token")

    @property
    def eos_token(self) -> str | None:
        return self.text.tokenizer.special_tokens.get("eos_token")

    @property
    def pad_token(self) -> str | None:
        return self.text.tokenizer.special_tokens.get("pad_token", self.eos_token)

    @property
    def bos_token_id(self) -> int | None:
        """None: texts begin without one."""
        return self._id("bos_token")

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...

    @overload
    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int | None]: ...

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> int | list[int | None] | None:
        """Their ids; None stands for one that is not in the vocabulary."""
        token_id = self.text.tokenizer.token_id
        return token_id(tokens) if isinstance(tokens, str) else [token_id(token) for token in tokens]

    def encode(self, text: str, **options: Any) -> list[int]:
        """The ids; nothing is added in any case, because a chat template writes what belongs there.

        Raises UserError for an option of transformers that would change them.
        """
        _refuse(options)
        return list(self.text.tokenizer.encode(text))

    def decode(self, token_ids: int | Iterable[int], *, skip_special_tokens: bool = False, **options: Any) -> str:
        _refuse(options)
        ids = (token_ids,) if isinstance(token_ids, int) else tuple(map(int, token_ids))
        return self.text.tokenizer.decode(ids, skip_special=skip_special_tokens)

    def batch_decode(self, sequences: Iterable[Sequence[int]], *, skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(ids, skip_special_tokens=skip_special_tokens) for ids in sequences]

    def apply_chat_template(
        self,
        conversation: Iterable[Mapping[str, Any] | Message],
        tools: Iterable[Any] | None = None,
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        remove_system_prompt: bool = False,
        **template_kwargs: Any,
    ) -> list[int] | str:
        """Ids, or text, of the messages in the model's template. `[{}]` is what it writes before the first message.

        remove_system_prompt: only what these messages add behind an answer that ended with an end-of-turn token, what
        the template puts between the two included.
        """
        _refuse({name: template_kwargs.pop(name) for name in _AS_IT_IS.keys() & template_kwargs.keys()})
        asked = list(conversation)
        is_empty = asked == [{}]
        messages, specs = read_messages([_USER] if is_empty else asked), read_tools(tools)
        given: dict[str, Any] = {
            "tools": specs,
            "generation_prompt": add_generation_prompt and not is_empty,
            "template_kwargs": template_kwargs,
        }
        if is_empty:  # one message more adds as much as the first did
            one, two = (self.text.template.render(messages * number, **given) for number in (1, 2))
            shown = one[: 2 * len(one) - len(two)]
        elif remove_system_prompt:
            shown = self.text.follow_up(messages, self.text.tokenizer.stop_ids, **given)
        else:
            shown = self.text.template.render(messages, **given)
        after = self.eos_token_id if remove_system_prompt else None
        return list(self.text.tokenizer.encode(shown, after=after)) if tokenize else shown

    def _id(self, name: str) -> int | None:
        token = self.text.tokenizer.special_tokens.get(name)
        if token is None:
            return None
        ids = self.text.tokenizer.encode(token)
        return ids[0] if len(ids) == 1 else None


def _refuse(options: Mapping[str, Any]) -> None:
    """Raises UserError for an option that would change the result."""
    for name, value in options.items():
        if name not in _AS_IT_IS:
            raise UserError(f"the tokenizer has no option {name!r}; there are {', '.join(_AS_IT_IS)}")
        if value is not None and value not in _AS_IT_IS[name]:
            raise UserError(
                f"{name}={value!r} cannot act: a loop's tokenizer gives whole lists of ids, as the recorder needs "
                "them; cut and pad what it returns"
            )
