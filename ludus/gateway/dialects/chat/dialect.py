"""OpenAI's Chat Completions as a `Dialect`."""

from __future__ import annotations

from ludus.gateway.dialects.base import Dialect
from ludus.gateway.dialects.chat.fields import REQUEST
from ludus.gateway.dialects.chat.read import read_request
from ludus.gateway.dialects.chat.write import ChatStream, whole
from ludus.gateway.dialects.openai import OPENAI

CHAT = Dialect(OPENAI, ("/chat/completions",), REQUEST, read_request, whole, ChatStream)
