"""Every field of `POST /v1/completions`, each in its class.

Knows: names and classes.  Knows not: what a field means.
"""

from __future__ import annotations

from ludus.gateway.dialects.fields import FieldTable
from ludus.gateway.dialects.sampling import SAMPLING_FIELDS

LIMITS = ("max_tokens",)
REQUEST = FieldTable.of(
    "prompt model n stop logprobs echo stream stream_options",
    "user",
    {
        "best_of": (1, "Ask for 'n' completions and choose among them."),
        "suffix": ("", "The model writes what follows a prompt; leave it out."),
    },
    also=(*SAMPLING_FIELDS, *LIMITS),
)
