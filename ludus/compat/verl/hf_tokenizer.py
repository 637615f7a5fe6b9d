"""A model's tokenizer as transformers' class, by verl's name.

Knows: options of verl's.  Knows not: where models lie.
"""

from __future__ import annotations

from typing import Any

from ludus.compat.members import takes
from ludus.compat.tokenizer import load_hf_tokenizer
from ludus.errors import UserError

_OPTIONS = {"use_fast": "fast_tokenizer", "padding_side": "padding_side"}


@takes("verl", "utils.tokenizer.tokenizer.hf_tokenizer")
def hf_tokenizer(
    name_or_path: str,
    correct_pad_token: bool = True,  # noqa: ARG001  verl's arguments; `takes` says that they do nothing
    correct_gemma2: bool = True,  # noqa: ARG001
    **kwargs: Any,
) -> Any:
    """The tokenizer of a model, by any name that `model.path` takes; the padding token is never missing.

    kwargs: `use_fast`, `padding_side`; code in a model's folder is never run, whatever `trust_remote_code` says.
    Raises UserError for others.
    """
    given = {name: value for name, value in kwargs.items() if name != "trust_remote_code"}
    if unknown := sorted(given.keys() - _OPTIONS):
        raise UserError(
            f"hf_tokenizer takes no {unknown[0]!r}; of transformers' options it takes {', '.join(_OPTIONS)}"
        )
    return load_hf_tokenizer(name_or_path, **{_OPTIONS[name]: value for name, value in given.items()})
