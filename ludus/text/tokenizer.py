"""Text to token ids and back, exactly as the model's own tokenizer files say.

Knows: `tokenizer.json` and the small JSON files beside it.  Knows not: messages, templates, engines.
Invariant: encoding adds no tokens; a special token that is spelled in the text becomes its id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import llguidance
import tokenizers

from ludus.errors import UserError

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_HALF_SURROGATE = re.compile("[\ud800-\udfff]")
"""JSON can spell them, text cannot hold them."""
_DEFAULT = "default"
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """A model folder's tokenizer, its chat template and its end-of-turn ids. Safe to share between threads."""

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str],
        stop_ids: frozenset[int],
        chat_template: str | None = None,
        other_templates: Mapping[str, str] = {},
    ) -> None:
        self._core = core
        self._added = core.get_added_tokens_decoder()
        self._special_ids = frozenset(idx for idx, token in self._added.items() if token.special)
        self._anchor_id = next((idx for idx, token in self._added.items() if token.special and not token.rstrip), None)
        """A special token that does not change the text after it. None: there is none."""
        self.special_tokens: Mapping[str, str] = dict(special_tokens)
        self.stop_ids = stop_ids
        self.chat_template = chat_template
        """None: the folder has no template; chat needs one from elsewhere."""
        self.other_templates: Mapping[str, str] = dict(other_templates)
        """Other templates of the model, by name: `tool_use`, `rag`."""
        self.num_encoded_chars = 0
        """Number of characters encoded since the start."""

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """The tokenizer saved in `folder`. Raises UserError naming the file that is missing or broken."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise UserError(f"No tokenizer in {str(folder)!r}: the file 'tokenizer.json' is missing. Save one there.")
        try:
            core = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for every kind of broken file
            raise UserError(f"Cannot read {str(path)!r}: {error}. Fetch or save the tokenizer again.") from error
        core.no_truncation()
        core.no_padding()
        config = _read_json(folder / "tokenizer_config.json")
        special_tokens = _special_tokens({**_read_json(folder / "special_tokens_map.json"), **config})
        templates = _templates(folder, config)
        return cls(
            core,
            special_tokens=special_tokens,
            stop_ids=_stop_ids(folder, core, special_tokens.get("eos_token")),
            chat_template=templates.pop(_DEFAULT, None),
            other_templates=templates,
        )

    @property
    def vocab_size(self) -> int:
        return self._core.get_vocab_size(with_added_tokens=True)

    def token_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it. None: there is none."""
        token_id: int | None = self._core.token_to_id(token)
        return token_id

    def difference(self, other: Tokenizer) -> str | None:
        """Describes the first token that has another id in `other`, or is missing there. None: there is none."""
        ours, theirs = (each._core.get_vocab(with_added_tokens=True) for each in (self, other))
        for token, token_id in sorted(ours.items(), key=lambda item: item[1]):
            if theirs.get(token) != token_id:
                return f"the token {token!r} has the id {token_id} here and {theirs.get(token, 'none')} there"
        return None if len(ours) == len(theirs) else f"{len(ours)} tokens here are {len(theirs)} there"

    @cached_property
    def longest_token(self) -> int:
        """Number of characters of the longest token: n tokens have at most n times as many characters."""
        return max(map(len, self._core.get_vocab(with_added_tokens=True)))

    @cached_property
    def guidance(self) -> llguidance.LLTokenizer:
        """The tokenizer in llguidance's form; an answer under a grammar ends with one of `stop_ids`.

        Built on first use, once per model. Raises UserError if llguidance cannot read this tokenizer.
        """
        if not self.stop_ids:
            raise UserError("the tokenizer names no end-of-turn token; set `eos_token` in tokenizer_config.json")
        try:
            return llguidance.LLTokenizer(self._core.to_str(), eos_token=sorted(self.stop_ids))
        except ValueError as error:
            raise UserError(f"No grammar can be used with this tokenizer: {error}. Leave grammars out.") from error

    @cached_property
    def special_ids(self) -> Mapping[str, int]:
        """Text and id of every token for which `is_special` holds."""
        return {self._added[idx].content: idx for idx in sorted(self._special_ids)}

    def encode(self, text: str, *, after: int | None = None) -> tuple[int, ...]:
        """Token ids of `text` and of special tokens spelled in it, with nothing added. Lone surrogates become U+FFFD.

        after: the token before `text` in its sequence; then no space is put before the first word, and if that is a
        special token, it strips whitespace as it would within one text. None: `text` starts a sequence.
        """
        self.num_encoded_chars += len(text)
        anchor_id = after if after in self._added else self._anchor_id
        if after is not None and anchor_id is not None:
            ids = self._encode(self._added[anchor_id].content + text)
            if ids[:1] == (anchor_id,):
                return ids[1:]
        return self._encode(text)

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Text of `ids`; bytes that form no character become U+FFFD."""
        return str(self._core.decode(list(ids), skip_special_tokens=skip_special))

    def is_special(self, token_id: int) -> bool:
        """Whether `decode(..., skip_special=True)` leaves this token out."""
        return token_id in self._special_ids

    def is_byte(self, token_id: int) -> bool:
        """Whether the token is one raw byte (`<0xE2>`), whose text depends on its neighbours."""
        token = self._core.id_to_token(token_id)
        return token is not None and _BYTE_TOKEN.fullmatch(token) is not None

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._core.encode(_HALF_SURROGATE.sub("\ufffd", text), add_special_tokens=False).ids)

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size}, stop_ids={sorted(self.stop_ids)})"


def _read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`, or an empty one if there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"Cannot read {str(path)!r}, which is no JSON: {error}. Save the model again.") from error
    return value if isinstance(value, dict) else {}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by name, for the template; the file has each as text or as an object with `content`."""
    texts: dict[str, str] = {}
    for name in _NAMED_TOKENS:
        value = config.get(name)
        if isinstance(value, Mapping):
            value = value.get("content")
        if isinstance(value, str):
            texts[name] = value
    return texts


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """By name, from all places in which transformers has kept them: files count before the tokenizer's config."""
    # models that see had theirs in a file of its own
    given = config.get("chat_template") or _read_json(folder / "chat_template.json").get("chat_template")
    named = {entry["name"]: entry["template"] for entry in given} if isinstance(given, list) else {_DEFAULT: given}
    files = {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    if (own := folder / "chat_template.jinja").is_file():
        files[_DEFAULT] = own
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    return {**{name: text for name, text in named.items() if isinstance(text, str)}, **texts}


def _stop_ids(folder: Path, core: tokenizers.Tokenizer, eos_token: str | None) -> frozenset[int]:
    """Every id that any file of the model names as the end of a turn."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder / name).get("eos_token_id")
        found.update(value if isinstance(value, list) else [value] if isinstance(value, int) else [])
    eos_id = None if eos_token is None else core.token_to_id(eos_token)
    return frozenset(found if eos_id is None else found | {eos_id})
