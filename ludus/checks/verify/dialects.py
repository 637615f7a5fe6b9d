"""Checks that an agent gets the same tokens, masks and logprobs in every wire protocol.

Knows: the gateway over a socket, the recorder, a scripted model.  Knows not: the SDKs, the format of any protocol.
The engine's answers depend only on the prompt's tokens and the seed. If a protocol loses, adds or changes anything, all
later tokens differ.
"""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial

from ludus.checks.verify.agents import AGENTS, MakeAgent, converse
from ludus.checks.verify.answers import WORDS, digest, rng_of, sampled_ids, some_words
from ludus.checks.verify.chat import chat_of_words
from ludus.checks.verify.verdict import Verdict
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.export import TurnCredit, export_session
from ludus.episodes.keys import SessionKeys
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.gateway.server import GatewayServer
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, ForkReason, Sampling, SessionRecord

_ASSISTANT = "<|im_start|>assistant"


@dataclass(frozen=True, slots=True)
class Trace:
    """Digests of the record of one agent."""

    turns: int
    tokens: int
    forks: tuple[ForkReason | None, ...]
    ids: str
    masks: str
    logprobs: str


@dataclass(frozen=True, slots=True)
class DialectsResult(Verdict):
    seed: int
    traces: Mapping[str, Trace] = field(default_factory=dict)
    """By the agent's name."""

    @property
    def ok(self) -> bool:
        return len(set(self.traces.values())) == 1

    def to_json(self) -> dict[str, object]:
        first = next(iter(self.traces.values()))
        return {
            "check": "dialects",
            "seed": self.seed,
            "agents": len(self.traces),
            **asdict(first),
            "forks": sum(fork is not None for fork in first.forks),
            "different": [name for name, trace in self.traces.items() if trace != first],
            "identical": self.ok,
            "ok": self.ok,
        }


def verify_dialects(*, seed: int = 0, agents: Mapping[str, MakeAgent] = AGENTS) -> DialectsResult:
    """Does an agent get the same tokens in every wire protocol?

    One agent with two tools is run through the official SDKs of OpenAI
    (Chat Completions, Responses) and Anthropic (Messages), streamed and not.
    What is recorded of each must be the same: token ids, masks, logprobs.

    Example:  ludus verify dialects --seed 7 --json
    """
    text = chat_of_words(WORDS)
    traces: dict[str, Trace] = {}
    sessions = SessionKeys()
    with GatewayServer(sessions) as server:
        for name, make_agent in agents.items():
            engine = ScriptedEngine(partial(_answer, text.tokenizer), text.tokenizer)
            session = Recorder(engine, text).open(SessionSpec("agent", sampling=Sampling(seed=seed)))
            secret = sessions.add(session)
            converse(make_agent(server.url_for(secret)))
            sessions.remove(secret)
            traces[name] = _trace(session.close("done"))
    return DialectsResult(seed, traces)


def _trace(record: SessionRecord) -> Trace:
    credit = {turn.id: TurnCredit(1.0, None) for turn in record.turns}
    sequences = export_session(record, credit, weight=1.0, style="individual").sequences
    return Trace(
        turns=len(record.turns),
        tokens=record.num_sampled_tokens,
        forks=tuple(turn.fork for turn in record.turns),
        ids=digest([array("q", sequence.token_ids) for sequence in sequences]),
        masks=digest([array("q", sequence.target_idx) for sequence in sequences]),
        logprobs=digest([array("d", sequence.logprobs) for sequence in sequences]),
    )


def _answer(tokenizer: Tokenizer, call: Call) -> list[int]:
    """The model's answer: its index in the session determines its tool calls, everything else is random."""
    rng = rng_of(call.prompt_ids, call.sampling.seed)
    number = tokenizer.decode(call.prompt_ids).count(_ASSISTANT) - 1
    thought = f"<think>\n{some_words(rng)}\n</think>\n\n" if rng.random() < 0.8 else ""
    content = some_words(rng) if number in (2, 5) or rng.random() < 0.5 else ""
    makers = {0: (_add,), 1: (_add, _look_up), 3: (_look_up,), 4: (_look_up, _add)}.get(number, ())
    calls = [make(rng) for make in makers]
    return [token for part in (thought, content, *calls) for token in sampled_ids(rng, tokenizer, part)]


def _add(rng: random.Random) -> str:
    return _call(rng, "add", {"a": rng.choice((6, 6.0, -1.5)), "b": rng.randrange(100)})


def _look_up(rng: random.Random) -> str:
    return _call(rng, "look_up", {"word": some_words(rng) + rng.choice(("", '"', "\n", "\U0001f9f1"))})


def _call(rng: random.Random, name: str, arguments: Mapping[str, object]) -> str:
    """A tool call in JSON as models write it, with whitespace, escapes and key order other than the template's."""
    order = list(arguments)
    rng.shuffle(order)
    separators = rng.choice(((", ", ": "), (",", ":"), (" , ", ":  ")))
    shown = json.dumps({key: arguments[key] for key in order}, ensure_ascii=rng.random() < 0.5, separators=separators)
    return f'\n<tool_call>\n{{"name": "{name}", "arguments": {shown}}}\n</tool_call>'
