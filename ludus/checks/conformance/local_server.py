"""The suite's own server: Ludus's gateway on a socket, with an engine whose answers are scripted by the cases.

Knows: all parts of a gateway, and how to put them together.  Knows not: protocols, cases.
Invariant, checked by `LocalSession.check`: after every case, each token that the engine delivered is in its session's
record, after the prompt that the engine got, and the ledger balances.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from starlette.types import ASGIApp

from ludus.checks.conformance import expect
from ludus.checks.conformance.answers import WORDS, Answer, ScriptedAnswers
from ludus.checks.conformance.gated_engine import GatedEngine, ObservedCall, TokenGate
from ludus.checks.tokenizer import chat_of
from ludus.engines.base import Engine
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.archive import MemoryArchive
from ludus.episodes.episodes import IDLE_S, Episodes
from ludus.episodes.export import TurnCredit, export_session
from ludus.episodes.keys import SessionKeys
from ludus.episodes.recorder import Recorder
from ludus.episodes.session import Session
from ludus.episodes.spec import SessionSpec
from ludus.gateway.app import GatewayOptions
from ludus.gateway.server import GatewayServer
from ludus.http.keys import new_key
from ludus.text.chat import ChatText
from ludus.types import Sampling, SessionRecord, Turn

CONTEXT_LENGTH = 4096
KEEP_ALIVE_S = 0.2  # short, for the case that waits for a keep-alive
_VOCAB_SIZE = 512  # the 256 bytes, the marks, and merges of markup and colours; other characters are several tokens
_MARKUP = (
    "system\nuser\nassistant\ntool\ndeveloper\n<tools>\n</tools>",
    '<think>\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
)


@dataclass(frozen=True, slots=True)
class ServerParts:
    """The parts of the server, of which a mutant replaces one."""

    app: Callable[[ASGIApp], ASGIApp] = lambda app: app
    engine: Callable[[Engine], Engine] = lambda engine: engine
    text: Callable[[ChatText], ChatText] = lambda text: text
    keys: Callable[[], SessionKeys] = SessionKeys


WHOLE = ServerParts()


class LocalServer:
    """A running gateway with its engine. Use as a context manager."""

    def __init__(self, parts: ServerParts = WHOLE) -> None:
        self.text = own_text()
        self.scripted_answers = ScriptedAnswers(self.text.tokenizer)
        scripted = ScriptedEngine(self.scripted_answers.answer, self.text.tokenizer, context_length=CONTEXT_LENGTH)
        self.engine = GatedEngine(scripted)
        self.recorder = Recorder(parts.engine(self.engine), parts.text(self.text))
        self.keys, self.admin_key = parts.keys(), new_key()
        episodes = Episodes(self.recorder, MemoryArchive(), keys=self.keys, idle_s=IDLE_S)
        options = GatewayOptions(episodes=episodes, admin_key=self.admin_key, keep_alive_s=KEEP_ALIVE_S)
        self.server = GatewayServer(self.keys, options)
        self.server.app = parts.app(self.server.app)
        self._numbers = itertools.count()

    def open(self, **options: Any) -> LocalSession:
        """Open a session. options: fields of `SessionSpec`."""
        session = self.recorder.open(SessionSpec(f"case-{next(self._numbers)}", **options))
        return LocalSession(self, self.keys.add(session), session)

    def __enter__(self) -> LocalServer:
        self.server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.stop()

    def __repr__(self) -> str:
        return f"LocalServer({self.server!r})"


class LocalSession:
    """A session of the local server, with access to its internals."""

    def __init__(self, server: LocalServer, secret: str, session: Session) -> None:
        self.server = server
        self.secret = secret
        self.session = session

    @property
    def root(self) -> str:
        """Base URL without `/v1`."""
        return self.server.server.url_for(self.secret).removesuffix("/v1")

    @property
    def gateway(self) -> str:
        """URL of the gateway, which names no session."""
        return self.server.server.base_url

    @property
    def calls(self) -> tuple[ObservedCall, ...]:
        """The engine's calls, and what it delivered."""
        return self.server.engine.observed(self.session.id)

    @property
    def sampling(self) -> Sampling:
        """The sampling parameters of the first call."""
        return self.calls[0].call.sampling

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self.session.snapshot().turns

    def script(self, *answers: Answer) -> None:
        """Answer the next calls with these."""
        self.server.scripted_answers.script(self.session.id, answers)

    def hold_tokens(self, num_free: int) -> TokenGate:
        """From now on hold every answer after `num_free` tokens, until the gate is released."""
        return self.server.engine.hold(self.session.id, num_free)

    def encode(self, text: str) -> tuple[int, ...]:
        return self.server.text.tokenizer.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.server.text.tokenizer.decode(token_ids)

    def prompt_text(self) -> str:
        """The prompt of the last call, as text."""
        return self.decode(self.calls[-1].call.prompt_ids)

    def remove(self) -> None:
        """Make the session unreachable from now on."""
        self.server.keys.remove(self.secret)

    async def check(self) -> None:
        """End the session and check its record. Raises ExpectationError."""
        check_record(await self.session.aclose("the case has ended"), self.calls)

    def leave(self) -> None:
        """End the session without checking it."""
        self.session.close("the case has ended")
        self.remove()
        self.server.engine.forget(self.session.id)


def check_record(record: SessionRecord, calls: Sequence[ObservedCall]) -> None:
    """Raises ExpectationError unless `record` holds exactly what the engine got and delivered."""
    handed_over = {
        observed.call.id: (*observed.call.prompt_ids, *observed.token_ids) for observed in calls if observed.token_ids
    }
    recorded = {turn.id: record.path_ids(turn.node) for turn in record.turns}
    expect.equal("turns in the record", sorted(recorded), sorted(handed_over))
    for turn_id, token_ids in handed_over.items():
        expect.equal(f"token ids recorded for {turn_id}", recorded[turn_id], token_ids)
    credit = {turn.id: TurnCredit(advantage=1.0, mask=None) for turn in record.turns}
    ledger = export_session(record, credit, weight=1.0, style="individual").ledger
    num_handed_over = sum(len(observed.token_ids) for observed in calls)
    expect.equal("trained and masked tokens", ledger.trained + ledger.num_masked, num_handed_over)


def own_text() -> ChatText:
    """Chat text of the suite, without a model: markup and colours are short tokens, everything else bytes."""
    template = resources.files("ludus.checks.conformance") / "template.jinja"
    return chat_of([*_MARKUP, " ".join(WORDS)], template, vocab_size=_VOCAB_SIZE)
