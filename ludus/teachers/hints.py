"""Puts a hint into the prompt of recorded answers, so that a teacher scores them with more knowledge.

Knows: messages, the chat template, rows.  Knows not: who scores.
Invariant: only the prompt of the first answer on a path changes; every later token stays as it was sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ludus.errors import AgentError, UserError
from ludus.teachers.settings import HintSettings
from ludus.text.chat import ChatText
from ludus.types import Episode, Message, Turn


@dataclass(frozen=True, slots=True)
class Hints:
    """Puts the hint of an episode's row into prompts."""

    settings: HintSettings
    text: ChatText
    row_of: Callable[[str], Mapping[str, Any]]
    """(task id): the row."""

    def prompt_ids(self, episode: Episode, turn: Turn, prompt_ids: tuple[int, ...]) -> tuple[int, ...]:
        """A turn's prompt with the hint of its episode's row; unchanged if the row has no hint.

        Raises UserError if the hint is not text, or if the template does not reproduce the prompt from the messages.
        """
        hint = self.row_of(episode.task_id).get(self.settings.column)
        if hint is None or hint == "":
            return prompt_ids
        if not isinstance(hint, str):
            raise UserError(
                f"teacher.hint.column: {self.settings.column!r} of {episode.task_id} must be a text, got "
                f"{type(hint).__name__}: {hint!r:.100}"
            )
        if self._encode(turn.messages, turn) != prompt_ids:
            raise UserError(
                f"no hint can be put into the prompt of turn {turn.id!r}: it is not what the chat template makes of "
                "its messages alone; leave out raw prompts and options of the template, or teacher.hint"
            )
        return self._encode(with_hint(turn.messages, self.settings, hint), turn)

    def _encode(self, messages: Sequence[Message], turn: Turn) -> tuple[int, ...]:
        try:
            return self.text.tokenizer.encode(self.text.template.render(messages, turn.tools))
        except AgentError as error:
            raise UserError(f"teacher.hint: the chat template refuses the prompt of {turn.id!r}: {error}") from error


def with_hint(messages: Sequence[Message], settings: HintSettings, hint: str) -> tuple[Message, ...]:
    """The messages, with the hint in the first message of the role that the settings name.

    Raises UserError if that is `user` and there is no user message.
    """
    at = next((idx for idx, message in enumerate(messages) if message.role == settings.into), None)
    if at is None and settings.into == "user":
        raise UserError("teacher.hint.into=user, and a conversation has no user's message; set it to system")
    content = settings.template.format(content="" if at is None else messages[at].content or "", hint=hint)
    if at is None:
        return (Message("system", content.strip()), *messages)
    return (*messages[:at], replace(messages[at], content=content), *messages[at + 1 :])
