"""verl's loader of tokenizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.compat.verl.utils import hf_tokenizer
from ludus.errors import UserError


def test_a_models_tokenizer(tiny_model_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """verl's options are taken, what they say beside is named, and transformers' others are refused."""
    tokenizer = hf_tokenizer(str(tiny_model_folder), trust_remote_code=True, padding_side="left")
    assert tokenizer.pad_token_id is not None and tokenizer.padding_side == "left" and caplog.messages == []
    hf_tokenizer(str(tiny_model_folder), correct_pad_token=False)
    assert "hf_tokenizer ignores correct_pad_token (padding and the end of a turn" in caplog.text
    with pytest.raises(
        UserError, match="hf_tokenizer takes no 'revision'; of transformers' options it takes use_fast, padd"
    ):
        hf_tokenizer(str(tiny_model_folder), revision="main")
