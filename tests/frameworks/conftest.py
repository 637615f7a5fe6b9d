"""A session on a running gateway with written answers, as an agent of any framework is given it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.keys import SessionKeys
from ludus.episodes.names import ModelNames
from ludus.episodes.recorder import Recorder
from ludus.episodes.session import Session
from ludus.episodes.spec import SessionSpec
from ludus.gateway.server import GatewayServer
from ludus.text.chat import ChatText
from tests.gateway.conftest import GatedEngine

CONTEXT_LENGTH = 100_000  # the small tokenizer makes many tokens of the long prompts that frameworks write


@dataclass
class ServedSession:
    """Where one agent plays: its URLs and key, and what stands behind them."""

    url: str
    """Without `/v1`, as Anthropic's SDK takes it."""
    key: str
    session: Session
    engine: Any
    text: ChatText

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"


ServeSession = Callable[..., ServedSession]


@pytest.fixture(scope="session")
def tools_text(tokenizer_folder: Path) -> ChatText:
    return ChatText.load(tokenizer_folder, chat_template="chatml-tools")


@pytest.fixture(scope="session")
def thinking_text(tokenizer_folder: Path) -> ChatText:
    """Qwen 3's template: it shows thinking, and only after the last question."""
    package = find_spec("trl")
    assert package is not None and package.origin is not None, "trl carries the templates; it is among the dev packages"
    return ChatText.load(
        tokenizer_folder, chat_template=str(Path(package.origin).with_name("chat_templates") / "qwen3.jinja")
    )


@pytest.fixture(scope="session")
def serve_session() -> Iterator[ServeSession]:
    """Opens a session; num_free lets every answer stop after so many tokens while the engine's gate is closed."""
    numbers = count()
    with GatewayServer(SessionKeys()) as server:

        def serve_session(text: ChatText, answers: Any, *, num_free: int | None = None) -> ServedSession:
            engine: Any = ScriptedEngine(answers, text.tokenizer, context_length=CONTEXT_LENGTH)
            if num_free is not None:
                engine = GatedEngine(engine, num_free=num_free)
            recorder = Recorder(engine, text, names=ModelNames(served=("claude-*",)))
            session = recorder.open(SessionSpec(f"session{next(numbers)}"))
            secret = server.keys.add(session)
            return ServedSession(server.url_for(secret).removesuffix("/v1"), secret, session, engine, text)

        yield serve_session
