"""A session with written answers, for graphs that run in the test itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.limits import NO_LIMITS, Limits
from ludus.episodes.recorder import Recorder
from ludus.episodes.session import Session
from ludus.episodes.spec import SessionSpec
from ludus.text.chat import ChatText
from ludus.types import Sampling
from tests.frameworks.conftest import ServedSession

OpenSession = Callable[..., ServedSession]


@pytest.fixture(scope="session")
def tools_text(tokenizer_folder: Path) -> ChatText:
    return ChatText.load(tokenizer_folder, chat_template="chatml-tools")


@pytest.fixture
def open_session(tools_text: ChatText) -> OpenSession:
    """Opens a session; one without URLs, so that what is checked of agents of frameworks is checked of it too."""

    def open_session(answers: Any, *, limits: Limits = NO_LIMITS, token_delay_s: float = 0.0) -> ServedSession:
        engine = ScriptedEngine(answers, tools_text.tokenizer, context_length=20_000, token_delay_s=token_delay_s)
        session: Session = Recorder(engine, tools_text).open(
            SessionSpec("s", limits=limits, sampling=Sampling(temperature=0.7, seed=3))
        )
        return ServedSession("", "", session, engine, tools_text)

    return open_session
