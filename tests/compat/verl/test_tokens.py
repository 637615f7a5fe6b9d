"""The tokenizer that loops are given."""

from __future__ import annotations

from typing import Any

import pytest

from ludus.compat.verl.tokens import LoopTokenizer
from ludus.errors import UserError
from ludus.text.chat import ChatText


@pytest.mark.parametrize(
    "option", [{"truncation": True}, {"max_length": 5}, {"padding": "max_length"}, {"return_tensors": "pt"}]
)
def test_options_that_would_change_the_ids_are_refused(text: ChatText, option: dict[str, Any]) -> None:
    """By name, wherever they are given; at the values that mean what is done here they are taken."""
    tokenizer, messages = LoopTokenizer(text), [{"role": "user", "content": "Guess."}]
    (name,) = option
    for call in (
        lambda: tokenizer.encode("Guess.", **option),
        lambda: tokenizer("Guess.", **option),
        lambda: tokenizer.apply_chat_template(messages, **option),
    ):
        with pytest.raises(UserError, match=f"{name}=.* cannot act"):
            call()
    with pytest.raises(UserError, match="the tokenizer has no option 'maxlen'; there are return_dict"):
        tokenizer.encode("Guess.", maxlen=5)
    plain = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    asked = {
        "return_dict": False,
        "return_tensors": None,
        "padding": False,
        "truncation": False,
        "enable_thinking": True,
    }
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True, **asked) == plain
    assert tokenizer.encode("Guess.", add_special_tokens=False, max_length=None) == tokenizer("Guess.")["input_ids"]
