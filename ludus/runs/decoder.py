"""The text of a run's tokens, by the tokenizer of the model that it trains.

Knows: the run's configuration, where models are.  Knows not: what the text is shown in.
"""

from __future__ import annotations

import yaml

from ludus.errors import UserError
from ludus.models.resolve import resolve_model
from ludus.runs.store import RunStore
from ludus.runs.view import Decode
from ludus.text.tokenizer import Tokenizer


def decoder_of(store: RunStore) -> Decode | None:
    """Text of the token ids in a run. None: the run's model is not here."""
    model = (yaml.safe_load(store.config_text) or {}).get("model") or {}
    reference = model.get("path")
    if not reference:
        return None
    try:
        return Tokenizer.load(resolve_model(str(reference))).decode
    except UserError:
        return None
