"""Questions to the models of a run from the page, and the interface of what answers them.

Knows: the fields of a question.  Knows not: models, processes, who asks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import pydantic

from ludus.http.body import Body

Json = dict[str, Any]
BRANCH, CHAT = "branch", "chat"
"""The two kinds of questions; the task id of an answer's episode."""
FOLDER = "branches"
"""A folder in a run's folder: a separate run with all answers."""
MOST_ANSWERS = 64
ANSWERS = "/answers"
"""Route of the sampling process for questions."""


class Edit(Body):
    """A message with its content replaced."""

    message_index: int = pydantic.Field(ge=0)
    """Index among the messages that the model saw in the turn."""
    content: str


class Past(Body):
    """The turn from which a branch begins."""

    num: int
    """Number of the episode in its run."""
    turn: str
    """Id of the turn, whose messages the model is given again."""
    edit: Edit | None = None
    """None: the messages are unchanged."""


class Said(Body):
    """A message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


class Question(Body):
    """A request for one answer."""

    session: str
    """Id of the answer's session. All questions of a chat to one model have the same."""
    group: str
    """Id of the branch or of the chat."""
    model: str
    """base, step-000080, final, or a model that is served elsewhere."""
    past: Past | None = None
    """None: it is a chat."""
    messages: tuple[Said, ...] = ()
    """All messages of a chat."""
    max_tokens: int | None = pydantic.Field(default=None, ge=1)
    """None: the limit of the original turn; in a chat, as many as fit into the context."""
    temperature: float | None = pydantic.Field(default=None, ge=0.0, le=2.0)
    """For chats. None: the run's."""
    metadata: dict[str, Any] = pydantic.Field(default_factory=dict)
    """Kept with the answer."""

    @property
    def kind(self) -> str:
        return CHAT if self.past is None else BRANCH


class Sampler(Protocol):
    """Answers questions with the models of runs, and with models that are served elsewhere."""

    @property
    def elsewhere(self) -> Mapping[str, str]:
        """Addresses of models that are served elsewhere, and can be asked in every run, by name."""

    def answer(self, run: Path, question: Question) -> AsyncIterator[Json]:
        """Yields `{"delta": text}` during sampling, and at the end the fields of `answer_json` with `{"done": true}`.

        Ending the iteration stops the sampling. Raises AgentError for an invalid question, BackendError if there is no
        answer.
        """

    def close(self) -> None:
        """Closing twice is allowed."""
