"""What the tests of the recorder share: chat texts over the small tokenizer, and a table to sit an agent at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ludus.engines.scripted import Answer, ScriptedEngine
from ludus.episodes.completion import OnDelta
from ludus.episodes.limits import NO_LIMITS, Limits
from ludus.episodes.recorder import Recorder
from ludus.episodes.session import Session
from ludus.episodes.spec import SessionSpec
from ludus.text.chat import ChatText
from ludus.types import Call, ChatRequest, Message, Sampling, ToolSpec, Turn

TEMPLATES = Path(__file__).parents[1] / "text" / "templates"
SEEDED = Sampling(seed=1)
ADD = ToolSpec("add", "Adds two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})


@dataclass(frozen=True)
class Table:
    """A session on a scripted engine, and the messages of an agent that echoes what it gets."""

    engine: ScriptedEngine
    session: Session
    text: ChatText

    async def ask(self, *messages: Message, on_delta: OnDelta | None = None, **fields: Any) -> Turn:
        """The only turn of a request with these messages."""
        (turn,) = await self.session.complete(ChatRequest(messages, **fields), on_delta)
        return turn

    def seen(self, turn: Turn) -> str:
        """What the engine saw and sampled up to the end of `turn`, as text."""
        return self.text.tokenizer.decode(self.session.snapshot().path_ids(turn.node))

    def rendered(self, *messages: Message, **fields: Any) -> str:
        return self.text.template.render(messages, **fields)


SetTable = Callable[..., Table]


def user(content: str) -> Message:
    return Message("user", content)


@pytest.fixture
def set_table(tokenizer_folder: Path) -> SetTable:
    """Makes a table: `set_table(answers, template=None | "chatml-tools" | a file of tests/text/templates, ...)`."""

    def make(
        answers: Iterable[Answer] | Callable[[Call], Answer],
        template: str | None = None,
        *,
        limits: Limits = NO_LIMITS,
        sampling: Sampling = SEEDED,
        pinned: Collection[str] = (),
        session_id: str = "session",
        token_delay_s: float = 0.0,
        context_length: int = 8192,
    ) -> Table:
        if template is not None and template.endswith(".jinja"):
            template = str(TEMPLATES / template)
        text = ChatText.load(tokenizer_folder, chat_template=template)
        engine = ScriptedEngine(answers, text.tokenizer, token_delay_s=token_delay_s, context_length=context_length)
        session = Recorder(engine, text).open(
            SessionSpec(session_id, group_id="group", limits=limits, sampling=sampling, pinned=pinned)
        )
        return Table(engine, session, text)

    return make
