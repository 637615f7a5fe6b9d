"""Encoding adds nothing, decoding loses nothing, and a model's files are read as they lie."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import llguidance
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import UserError
from ludus.text.chat import ChatText
from ludus.text.tokenizer import Tokenizer


def test_special_tokens_in_text(tokenizer: Tokenizer) -> None:
    """Special tokens written in the text become their ids, and nothing else is added."""
    ids = tokenizer.encode("<|im_start|>user\nhi<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert tokenizer.decode(ids) == "<|im_start|>user\nhi<|im_end|>"
    assert tokenizer.decode(ids, skip_special=True) == "user\nhi"
    assert tokenizer.encode("") == ()


@given(st.text())
def test_round_trip(tokenizer: Tokenizer, text: str) -> None:
    """Decoding the ids of a text gives the text."""
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(text, after=5)) == text


def test_half_surrogates(tokenizer: Tokenizer) -> None:
    """Half a surrogate, which JSON can spell, is encoded as the replacement character."""
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"


def test_what_the_folder_says(tokenizer: Tokenizer) -> None:
    """Stop ids, special tokens, template and size come from the model's folder."""
    assert tokenizer.stop_ids == {2}
    assert tokenizer.special_tokens["eos_token"] == "<|im_end|>"
    assert tokenizer.chat_template is not None
    assert "<|im_start|>assistant" in tokenizer.chat_template
    assert 256 < tokenizer.vocab_size <= 400
    assert "stop_ids=[2]" in repr(tokenizer)


def test_special_tokens_of_older_models(tokenizer_folder: Path, tmp_path: Path) -> None:
    """They may stand in a file of their own; what the tokenizer's config says counts, also that there is none."""
    shutil.copytree(tokenizer_folder, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"eos_token": "<|im_end|>", "unk_token": None}))
    older = {"bos_token": {"content": "<|im_start|>"}, "eos_token": "other", "unk_token": "other"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({**older, "additional_special_tokens": []}))
    assert Tokenizer.load(tmp_path).special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


def test_all_stop_ids_count(tokenizer_folder: Path, tmp_path: Path) -> None:
    """End-of-turn ids of the generation config, the config and the tokenizer are put together."""
    shutil.copytree(tokenizer_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 9]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    assert Tokenizer.load(tmp_path).stop_ids == {0, 2, 7, 9}


def test_template_in_the_config(tokenizer_folder: Path, tmp_path: Path) -> None:
    """Without a template file, the field of the tokenizer's config is taken: text, or a list of named ones."""
    shutil.copytree(tokenizer_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "chat_template.jinja").unlink()
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    named = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
    for value, expected in (("T", "T"), (named, "D"), (None, None)):
        path.write_text(json.dumps({**config, "chat_template": value, "bos_token": {"content": "<b>"}}))
        assert Tokenizer.load(tmp_path).chat_template == expected
    assert Tokenizer.load(tmp_path).special_tokens["bos_token"] == "<b>"


def test_other_templates_have_their_names(tokenizer_folder: Path, tmp_path: Path) -> None:
    """In the tokenizer's config, in the file of a model that sees, or in files of their own, which count first."""
    shutil.copytree(tokenizer_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "chat_template.jinja").unlink()
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "U"}]
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": named}))
    found = Tokenizer.load(tmp_path)
    assert (found.chat_template, found.other_templates) == ("D", {"tool_use": "U"})
    assert ChatText.load(tmp_path, chat_template="tool_use").template.source == "U"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("F")
    assert Tokenizer.load(tmp_path).other_templates == {"tool_use": "F"}
    with pytest.raises(UserError, match=r"own \(chatml-tools, tool_use\)"):
        ChatText.load(tmp_path, chat_template="tools")


def test_missing_file_is_named(tmp_path: Path) -> None:
    """A folder without a tokenizer, or with a broken one, is refused with the file's name."""
    with pytest.raises(UserError, match=r"'tokenizer\.json' is missing"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_broken_config_is_named(tokenizer_folder: Path, tmp_path: Path) -> None:
    """A config that is no JSON is refused with the file's name."""
    shutil.copytree(tokenizer_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer_config\.json"):
        Tokenizer.load(tmp_path)


def test_counts_encoded_characters(tokenizer_folder: Path) -> None:
    """The counter tells how much text was ever tokenized."""
    tokenizer = Tokenizer.load(tokenizer_folder)
    tokenizer.encode("four")
    tokenizer.encode("more", after=2)
    assert tokenizer.num_encoded_chars == 8


def sentencepiece_like(*, rstrip: bool) -> Tokenizer:
    """A tokenizer that puts a blank before the first word, as Llama's and Mistral's do."""
    vocab = {"</s>": 0, "▁": 1, "a": 2, "b": 3, "▁a": 4, "\n": 5}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [("▁", "a")]))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
    core.decoder = tokenizers.decoders.Metaspace(prepend_scheme="first")
    core.add_special_tokens([tokenizers.AddedToken("</s>", special=True, rstrip=rstrip, normalized=False)])
    return Tokenizer(core, special_tokens={}, stop_ids=frozenset({0}))


def test_text_in_the_middle_gets_no_blank() -> None:
    """Text that follows other tokens is encoded without the blank that starts a sequence."""
    tokenizer = sentencepiece_like(rstrip=False)
    assert tokenizer.encode("ab") == (4, 3)
    assert tokenizer.encode("ab", after=3) == (2, 3)
    assert tokenizer.encode("ab", after=0) == tokenizer.encode("</s>ab")[1:] == (2, 3)


def test_text_after_a_swallowing_token() -> None:
    """A special token that swallows the blanks behind it does so too when it was sampled before."""
    tokenizer = sentencepiece_like(rstrip=True)
    assert tokenizer.encode("\nb", after=0) == tokenizer.encode("</s>\nb")[1:] == (3,)
    assert tokenizer.encode("\nb", after=3)[-1] == 3


def test_guidance_reads_grammars_in_the_tokenizers_own_tokens(tokenizer: Tokenizer) -> None:
    """Tokens that spell the grammar are taken, then every stop id and nothing else; it is built once."""
    matcher = llguidance.LLMatcher(tokenizer.guidance, 'start: "seven"')
    spelled = tokenizer.encode("seven")
    assert matcher.try_consume_tokens([*spelled, *tokenizer.encode("x")]) == len(spelled)
    assert matcher.is_stopped() and matcher.consume_token(min(tokenizer.stop_ids))
    assert frozenset(tokenizer.guidance.eos_tokens) == tokenizer.stop_ids
    assert tokenizer.guidance is tokenizer.guidance


def test_a_tokenizer_that_guidance_cannot_read_is_refused() -> None:
    """Words without a decoder, and a tokenizer that ends no turn, serve no grammar, and say so."""
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    with pytest.raises(UserError, match=r"No grammar can be used with this tokenizer: .*decoder"):
        _ = Tokenizer(core, special_tokens={}, stop_ids=frozenset({0})).guidance
    with pytest.raises(UserError, match="no end-of-turn token"):
        _ = Tokenizer(core, special_tokens={}, stop_ids=frozenset()).guidance


def test_tokenizers_are_told_apart_by_tokens(tokenizer: Tokenizer, tokenizer_folder: Path, tmp_path: Path) -> None:
    """By the first token that has another id, or is none there, or by their number; equal ones are not."""
    assert tokenizer.difference(Tokenizer.load(tokenizer_folder)) is None
    text = (tokenizer_folder / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace('"<|endoftext|>"', '"<|other|>"'))
    renamed = Tokenizer.load(tmp_path)
    assert tokenizer.difference(renamed) == "the token '<|endoftext|>' has the id 0 here and none there"
    more = json.loads(text)
    added = {**more["added_tokens"][0], "id": tokenizer.vocab_size, "content": "<|more|>"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({**more, "added_tokens": [*more["added_tokens"], added]}))
    found = tokenizer.difference(Tokenizer.load(tmp_path))
    assert found == f"{tokenizer.vocab_size} tokens here are {tokenizer.vocab_size + 1} there"
