"""Runs random chats through a recorder, with everything that agents, limits and engines can do to a session.

Knows: the recorder's public interface, a scripted engine, messages.  Knows not: graphs, prompts, forks, which belong to
the recorder, and are what the checks test.

Agents send rounds of parallel requests. They continue any earlier turn, ask again, take several choices, retry a
request, start sub-agents, edit, drop and compact history, send replies back without thinking or with other whitespace,
and disconnect early. The engine's answers contain thinking and tool calls, repeat each other, and have words in unusual
tokens; its weights change between tokens. Sessions meet limits, and are closed during requests.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ludus.checks.weights import NoNewWeights
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.limits import Limits
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.errors import AgentError
from ludus.text.chat import ChatText
from ludus.types import Call, ChatRequest, Message, Sampling, SessionRecord, ToolSpec, Turn

WORDS = ("go", "on", "no", "up")  # few, so that different turns often have the same text
_AGENTS = ("", "", "solver", "critic")
_ASK = ToolSpec("ask")
_SHORT_CONTEXT = 120  # after a few turns the next prompt does not fit
_MAX_ROUNDS = 6
_SAMPLINGS = (
    *[Sampling()] * 20,
    *[Sampling(max_new_tokens=2)] * 3,
    Sampling(stop=("on",)),
    Sampling(temperature=0.7),
    Sampling(temperature=0.0),
    Sampling(top_p=0.9),
    Sampling(repetition_penalty=1.1),
)


@dataclass(frozen=True, slots=True)
class PlayedTree:
    """The record of a session, and what its engine knows about it."""

    record: SessionRecord
    calls: Mapping[str, Call]
    """The engine's calls, by id."""
    num_sampled: int
    """Number of tokens that the engine sampled, by its own count."""
    answers: Mapping[str, frozenset[tuple[str, ...]]]
    """Turns that answered a retry key; a retried request must have one answer."""


async def play_tree(rng: random.Random, text: ChatText) -> PlayedTree:
    """A session of up to six rounds; the same state of `rng` gives the same tokens."""
    player = _Player(rng, text)
    if rng.random() < 0.7:
        await player.publish()
    for _ in range(rng.randint(1, _MAX_ROUNDS)):
        await player.play_round()
    record = await player.end()
    calls = {call.id: call for call in player.engine.calls}
    answers = {key: frozenset(found) for key, found in player.answers.items()}
    return PlayedTree(record, calls, player.engine.stats().num_sampled_tokens, answers)


class _Player:
    """The agents of one session, and the scripted model that answers them."""

    def __init__(self, rng: random.Random, text: ChatText) -> None:
        self._rng = rng
        self._tokenizer = text.tokenizer
        context_length = rng.choice((_SHORT_CONTEXT, *[8192] * 9))
        self.engine = ScriptedEngine(self._answer, text.tokenizer, context_length=context_length)
        self._session = Recorder(self.engine, text).open(
            SessionSpec(
                "tree",
                limits=rng.choice((Limits(max_turns=5), Limits(max_tokens=40), *[Limits()] * 8)),
                sampling=Sampling(seed=rng.getrandbits(32)),
            )
        )
        self._tools = (_ASK,) if rng.random() < 0.7 else ()
        self._template_kwargs = {"keep_thinking": rng.random() < 0.5}
        self._system = Message("system", self._random_text())
        self._asked: list[ChatRequest] = []
        self._keys = itertools.count()
        self.answers: dict[str, set[tuple[str, ...]]] = {}
        self._turns: list[Turn] = []
        self._said: list[list[int]] = []

    async def play_round(self) -> None:
        """Send one to three parallel requests; sometimes one is abandoned, or the weights change meanwhile."""
        rng = self._rng
        requests = [self._next_request() for _ in range(rng.choice((1, 1, 1, 2, 3)))]
        if rng.random() < 0.1:
            requests.append(requests[0])
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._send(request)) for request in requests]
            if rng.random() < 0.25:
                await self._wait_tokens()
                await self.publish()
            if rng.random() < 0.15:
                await self._wait_tokens()
                rng.choice(tasks).cancel()

    async def publish(self) -> None:
        """The engine's weights change."""
        await self.engine.publish(self.engine.stats().version + 1, NoNewWeights())

    async def end(self) -> SessionRecord:
        """Close the session, during a request or after the last one; returns its record."""
        async with asyncio.TaskGroup() as group:
            if self._rng.random() < 0.2:
                group.create_task(self._send(self._next_request()))
                await self._wait_tokens()
            return await self._session.aclose("the episode has ended")

    async def _send(self, request: ChatRequest) -> None:
        self._asked.append(request)
        try:
            turns = await self._session.complete(request)
        except AgentError:
            return  # a limit, a full context, a retry key with another body: refused, and the agent continues
        self._turns += turns
        if request.retry_key is not None:
            self.answers.setdefault(request.retry_key, set()).add(tuple(turn.id for turn in turns))

    async def _wait_tokens(self) -> None:
        """Wait until the engine has sampled a few tokens, one for each round of the event loop."""
        for _ in range(self._rng.randrange(12)):
            await asyncio.sleep(0)

    def _next_request(self) -> ChatRequest:
        rng = self._rng
        if self._asked and rng.random() < 0.1:
            again = rng.choice(self._asked)
            return again if rng.random() < 0.8 else replace(again, messages=(*again.messages, self._user()))
        messages, agent = self._next_messages()
        return ChatRequest(
            messages=messages,
            tools=self._tools,
            sampling=rng.choice(_SAMPLINGS),
            n=rng.choice((1, 1, 1, 1, 2, 3)),
            template_kwargs=self._template_kwargs,
            agent=agent,
            retry_key=f"key-{next(self._keys)}" if rng.random() < 0.5 else None,
        )

    def _next_messages(self) -> tuple[tuple[Message, ...], str]:
        rng = self._rng
        if not self._turns or rng.random() < 0.15:
            return (self._system, self._user()), rng.choice(_AGENTS)
        turn = rng.choice((self._turns[-1], self._turns[-1], rng.choice(self._turns)))
        kind = rng.choice(("go_on",) * 5 + ("ask_again", "sub_agent", "edit", "drop", "compact"))
        if kind == "ask_again":
            return turn.messages, turn.agent
        if kind == "sub_agent" and turn.reply.tool_calls:
            task = json.loads(turn.reply.tool_calls[0].arguments).get("task", "")
            return (self._system, Message("user", str(task))), rng.choice(_AGENTS)
        history = [*turn.messages, self._echo(turn.reply)]
        if kind == "edit":
            at = rng.randrange(len(history))
            history[at] = replace(history[at], content=self._random_text())
        elif kind == "drop":
            del history[rng.randrange(len(history))]
        elif kind == "compact":
            history = [self._system, self._user()]
        return (*history, self._received(turn)), turn.agent

    def _echo(self, reply: Message) -> Message:
        """The reply as the agent sends it back: unchanged, without its thinking, or with other whitespace."""
        kind = self._rng.choice(("same",) * 6 + ("thoughtless",) * 3 + ("blank",))
        if kind == "thoughtless":
            return replace(reply, reasoning=None)
        return replace(reply, content=f" {reply.content or ''}") if kind == "blank" else reply

    def _received(self, turn: Turn) -> Message:
        if turn.reply.tool_calls and self._rng.random() < 0.8:
            return Message("tool", self._random_text(), tool_call_id=turn.reply.tool_calls[0].id)
        return self._user()

    def _user(self) -> Message:
        return Message("user", self._random_text())

    def _random_text(self) -> str:
        return " ".join(self._rng.choices(WORDS, k=self._rng.randrange(1, 3)))

    def _answer(self, call: Call) -> Sequence[int]:
        """The answer to `call`, without the stop token, which the engine adds."""
        repeats = self._said and self._rng.random() < 0.2
        self._said.append(self._rng.choice(self._said[-3:]) if repeats else self._random_answer())
        return self._said[-1]

    def _random_answer(self) -> list[int]:
        rng = self._rng
        parts = rng.choices(WORDS, k=rng.randrange(4))
        if rng.random() < 0.3:
            parts = ["<think>\n", self._random_text(), "\n</think>\n\n", *parts]
        if rng.random() < 0.3:
            call = {"name": "ask", "arguments": {"task": " ".join(rng.choices(WORDS, k=2))}}
            parts.append(f"<tool_call>\n{json.dumps(call)}\n</tool_call>")
        return [token for part in parts for token in self._spelled(part)]

    def _spelled(self, part: str) -> Sequence[int]:
        """The tokenizer's encoding; sometimes a word is encoded letter by letter."""
        if part in WORDS and self._rng.random() < 0.2:
            return [token for letter in part for token in self._tokenizer.encode(letter)]
        return self._tokenizer.encode(part)
