"""Decodes a run's tokens with the tokenizer of its model.

Knows: the run's configuration, where models are.  Knows not: what the text is shown in.
"""

from __future__ import annotations

from ludus.errors import UserError
from ludus.models.resolve import resolve_tokenizer
from ludus.runs.folder import read_config
from ludus.runs.store import RunStore
from ludus.runs.view import Decode
from ludus.text.tokenizer import Tokenizer


def decoder_of(store: RunStore) -> Decode | None:
    """A function from a run's token ids to text. None: the run's model is not on this machine."""
    try:
        reference = read_config(store.folder).get("model", {}).get("path")
        return Tokenizer.load(resolve_tokenizer(str(reference))).decode if reference else None
    except UserError:
        return None
