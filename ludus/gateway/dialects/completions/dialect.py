"""OpenAI's Completions as a `Dialect`."""

from __future__ import annotations

from ludus.gateway.dialects.base import Dialect
from ludus.gateway.dialects.completions.fields import REQUEST
from ludus.gateway.dialects.completions.read import read_request
from ludus.gateway.dialects.completions.write import CompletionStream, whole
from ludus.gateway.dialects.openai import OPENAI

COMPLETIONS = Dialect(OPENAI, ("/completions",), REQUEST, read_request, whole, CompletionStream)
