"""Loads the tokenizer of a model as a class of Hugging Face's transformers.

Knows: where a model's folder is, transformers.  Knows not: agents.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ludus.compat.overrides import model
from ludus.errors import UserError
from ludus.models.resolve import resolve_tokenizer


@lru_cache(maxsize=8)
def load_hf_tokenizer(model_name_or_path: str, fast_tokenizer: bool = True, padding_side: str | None = None) -> Any:
    """The tokenizer of a model, named as in `model.path`; it always has a padding token.

    Raises UserError if transformers is not installed, or the model does not exist.
    """
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError:
        raise UserError("load_hf_tokenizer needs transformers: pip install 'ludus[train]'") from None
    options = {} if padding_side is None else {"padding_side": padding_side}
    tokenizer = AutoTokenizer.from_pretrained(
        resolve_tokenizer(model(model_name_or_path)), use_fast=fast_tokenizer, trust_remote_code=False, **options
    )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token_id = tokenizer.eos_token_id
    return tokenizer


def apply_chat_template(
    tokenizer: Any, messages: list[dict[str, Any]], *, tokenize: bool = True, **kwargs: Any
) -> list[int] | str:
    """A conversation rendered with the tokenizer's template: token ids, or text with `tokenize=False`."""
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
    return list(tokenizer.encode(text, add_special_tokens=False)) if tokenize else text
