"""A chat model with prepared answers, for tests, documentation, and rules in the role of judges.

Knows: a function or a list of texts.  Knows not: HTTP, models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ludus.errors import BackendError
from ludus.rewards.chat.base import ChatAnswer, Json, Usage

Script = Callable[[Sequence[Json]], str]


class ScriptedChatModel:
    """Answers with a function of the messages, or with the texts of a list, one after the other."""

    def __init__(self, script: Script | Sequence[str], *, name: str = "scripted") -> None:
        self._script = script
        self._name = name
        self.asked: list[tuple[Json, ...]] = []
        """The messages of every call so far."""

    def __repr__(self) -> str:
        return f"ScriptedChatModel({self._name!r})"

    @property
    def identity(self) -> Json:
        return {"scripted": self._name}

    async def ask(self, messages: Sequence[Json], *, name: str, schema: Json) -> ChatAnswer:
        self.asked.append(tuple(messages))
        if callable(self._script):
            text = self._script(messages)
        elif len(self.asked) <= len(self._script):
            text = self._script[len(self.asked) - 1]
        else:
            raise BackendError(f"the scripted model has {len(self._script)} answers, and was asked once more")
        words = sum(len(str(message.get("content") or "").split()) for message in messages)
        return ChatAnswer(text, Usage(1, 0, words, len(text.split()), 0.0))

    async def aclose(self) -> None:
        return None
