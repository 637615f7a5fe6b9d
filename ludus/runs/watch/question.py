"""What a model of a run is asked on the page, and what answers it.

Knows: the words of a question.  Knows not: models, processes, who asks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import pydantic

from ludus.http.body import Body

Json = dict[str, Any]
BRANCH, CHAT = "branch", "chat"
"""What an answer belongs to; its episode's task is called so."""
FOLDER = "branches"
"""In a run's folder, a run of its own with all that was answered."""
MOST_ANSWERS = 64
ANSWERS = "/answers"
"""Where the process that samples is asked."""


class Edit(Body):
    """A message with another content."""

    message_index: int = pydantic.Field(ge=0)
    """Among those that the model saw before it answered."""
    content: str


class Past(Body):
    """Where a branch begins."""

    num: int
    """Of the episode in its run."""
    turn: str
    """The model is asked what it was asked in this turn."""
    edit: Edit | None = None
    """None: nothing is changed."""


class Said(Body):
    """A message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


class Question(Body):
    """One answer that is wanted."""

    session: str
    """Its id. Of a chat all questions to one model have the same one."""
    group: str
    """Of the branch, or of the chat."""
    model: str
    """base, step-000080, final, or one that is served elsewhere."""
    past: Past | None = None
    """None: it is a chat."""
    messages: tuple[Said, ...] = ()
    """Of a chat, from its beginning."""
    max_tokens: int | None = pydantic.Field(default=None, ge=1)
    """None: as many as the turn was allowed; of a chat, as many as fit."""
    temperature: float | None = pydantic.Field(default=None, ge=0.0, le=2.0)
    """Of a chat. None: as the run samples."""
    metadata: dict[str, Any] = pydantic.Field(default_factory=dict)
    """Kept with the answer."""

    @property
    def kind(self) -> str:
        return CHAT if self.past is None else BRANCH


class Sampler(Protocol):
    """Answers with the weights of runs, and of who serves others elsewhere."""

    @property
    def elsewhere(self) -> Mapping[str, str]:
        """Models that answer for every run: by name, the address where they are served."""

    def answer(self, run: Path, question: Question) -> AsyncIterator[Json]:
        """`{"delta": text}` while it is sampled, in the end what `answer_json` gives and `{"done": true}`.

        Ending the iteration ends the sampling. Raises AgentError for what cannot be asked, BackendError where nothing
        answers.
        """

    def close(self) -> None:
        """Closing twice is allowed."""
