"""Checks that credit does not depend on the order of answers: random concurrent agents are answered in two orders.

Knows: chat requests, an engine that holds answers back, returns of turns.  Knows not: models, the rule of credit.
An agent is a tree of conversations. Each continues, begins anew, takes several answers and continues one of them, asks
again before or after it was answered, makes a second attempt, retries a request with its key, starts workers and merges
their results, has several agents (or several workers of one) answer the same prompt, or has its tool calls served by
sub-agents, with the same tag or another. Each text depends only on its place in the tree, so that two plays differ only
in the order of answers: the return of every turn must be the same. The agent also knows of which answers it chose one:
exactly the others must be not chosen.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import httpx

from ludus.engines.base import OnTokens
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.episode import finish
from ludus.episodes.keys import SessionKeys
from ludus.episodes.outcome import Returned
from ludus.episodes.recorder import Recorder
from ludus.episodes.reward import not_chosen
from ludus.episodes.session import Session
from ludus.episodes.spec import SessionSpec
from ludus.gateway.server import GatewayServer
from ludus.loop.batch import episode_returns
from ludus.runs.interactions import message_json
from ludus.text.chat import ChatText
from ludus.types import Call, ChatRequest, Message, Sampled, ToolCall, ToolSpec

Returns = dict[str, float | None]
"""By the name of the turn."""
Answers = Sequence[tuple[str, Message]]
"""For each choice the id of its turn, and the reply."""
Ask = Callable[[ChatRequest], Awaitable[Answers]]
_DISCOUNT = 0.5
_WORDS = ("yes", "no", "well", "done")
_TOOLS = (ToolSpec("ask"),)
_NAME = re.compile(r"#[\w.]+")
_ALONE = ("go on", "afresh", "best of", "again", "twice", "retry")
_KINDS = (*_ALONE, "attempts", "alike", "alike", "workers", "workers", "calls")
_CHOICES = ("best of", "again")
"""Of these answers the agent chooses one."""
_SEVERAL = ("best of", "again", "twice", "workers")
"""After these the agent may begin anew instead of going on."""
_MAX_DEPTH = 2


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a random agent's turns."""

    returns: Returns
    is_chosen_right: bool
    """Not chosen are exactly the answers that the agent had to choose from and did not go on with."""


async def play_tree(text: ChatText, seed: str, order: int, *, over_http: bool = False) -> Played:
    """A random agent. order: seed of the order of its answers."""
    play = _Play(text, seed, random.Random(order))
    session = Recorder(play.engine, text).open(SessionSpec("tree"))
    if over_http:
        keys = SessionKeys()
        with GatewayServer(keys) as server:
            async with httpx.AsyncClient(base_url=server.url_for(keys.add(session)), trust_env=False) as client:
                await play.run(_over_http(client), pause_s=0.001)
    else:
        await play.run(_in_process(session), pause_s=0.0)
    record = await session.aclose("the episode has ended")
    rng, names = random.Random(f"{seed}/reward"), sorted(play.ids)
    chosen = rng.sample(names, rng.randint(1, len(names)))
    returned = rng.choice((1.0, {play.ids[name]: rng.random() for name in chosen}))
    episode = finish(SessionSpec(), record, Returned(returned), started_at=0.0)
    assert episode.outcome.kind == "ok", episode.outcome
    returns = episode_returns(episode, _DISCOUNT)
    others = not_chosen(record.turns)
    left = [len(each) - sum(play.ids[name] in others for name in each) for each in play.choices]
    is_right = all(num == 1 for num in left) and sum(len(each) - 1 for each in play.choices) == len(others)
    return Played({name: returns[play.ids[name]] for name in names}, is_right)


class _HeldEngine(ScriptedEngine):
    """An engine that holds every answer back until it is released."""

    def __init__(self, answer: Callable[[Call], str], text: ChatText) -> None:
        super().__init__(answer, text.tokenizer, context_length=2**16)
        self.held: list[tuple[Call, Future[None]]] = []

    async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
        let_go: Future[None] = Future()
        self.held.append((call, let_go))
        await asyncio.wrap_future(let_go)
        return await super().generate(call, on_tokens)


class _Play:
    """One agent, its model, and the order in which its answers come."""

    def __init__(self, text: ChatText, seed: str, order: random.Random) -> None:
        self.engine = _HeldEngine(self._answer, text)
        self.ids: dict[str, str] = {}
        """Ids of turns, by name."""
        self.choices: list[Sequence[str]] = []
        """Sets of answers, by name, of which the agent went on with one."""
        self._text = text
        self._seed = seed
        self._order = order
        self._tasks: dict[str, list[str]] = {}
        """The tasks for sub-agents in the answer of a step, by its name."""
        self._num_sent = self._num_let_go = 0
        """Numbers of answers, not of requests."""
        self._num_choices: dict[str, int] = {}
        self._let_go: Counter[str] = Counter()
        self._num_answered = 0
        self._awaited: dict[str, asyncio.Event] = {}
        """Steps that send their next request when the one before has arrived."""
        self._differ_at: set[str] = set()
        """Steps whose answers must differ: equal ones that are gone on with could be either."""

    async def run(self, ask: Ask, *, pause_s: float) -> None:
        """Run the agent to its end. pause_s: interval at which the engine's requests are checked."""
        playing = asyncio.ensure_future(self._conversation(ask, "#0", "", "begin", depth=0))
        while not playing.done():
            await asyncio.sleep(pause_s)
            if not self.engine.held or not self._is_settled():
                continue
            there = {self._name_of(call) for call, _ in self.engine.held} & self._awaited.keys()
            if there:
                self._awaited.pop(there.pop()).set()
                continue
            call, let_go = self.engine.held.pop(self._order.randrange(len(self.engine.held)))
            self._let_go[self._name_of(call)] += 1
            self._num_let_go += 1
            let_go.set_result(None)
        await playing

    def _is_settled(self) -> bool:
        """Whether all sent requests have arrived, and the agent has got every released answer."""
        whole = (num - num % self._num_choices[name] for name, num in self._let_go.items())
        return self._num_sent == self._num_let_go + len(self.engine.held) and self._num_answered == sum(whole)

    def _name_of(self, call: Call) -> str:
        return str(_NAME.findall(self._text.tokenizer.decode(call.prompt_ids))[-1])

    def _answer(self, call: Call) -> str:
        name = self._name_of(call)
        rng = random.Random(f"{self._seed}/{name}/{call.sampling.seed}")
        asked = [{"name": "ask", "arguments": {"task": task}} for task in self._tasks.get(name, ())]
        calls = "".join(f"\n<tool_call>\n{json.dumps(each)}\n</tool_call>" for each in asked)
        return rng.choice(_WORDS) + (f" {call.sampling.seed}" if name in self._differ_at else "") + calls

    async def _conversation(self, ask: Ask, path: str, agent: str, opening: str, *, depth: int) -> None:
        rng = random.Random(f"{self._seed}/{path}")
        said: list[Message] = []
        chosen_from: Sequence[str] = ()
        for step in range(rng.randint(1, 3)):
            name, kind = f"{path}.{step}", rng.choice(_KINDS if depth < _MAX_DEPTH else _ALONE)
            subs = [f"{name}w{idx}" for idx in range(rng.randint(2, 3))]
            openings = [f"look at {sub}" for sub in subs] if kind == "calls" else ["part"] * len(subs)
            self._tasks[name] = openings if kind == "calls" else []
            if chosen_from and kind != "afresh":
                self.choices.append(chosen_from)
            said = [*([] if kind == "afresh" else said), Message("user", f"{opening} {name}")]
            request = ChatRequest(tuple(said), _TOOLS, n=len(subs) if kind == "best of" else 1, agent=agent)
            tag = rng.choice((agent, f"helper of {name}"))
            if kind == "alike":
                others = [rng.choice((agent, f"{name} {idx}")) for idx in range(2)]
                await self._alike(ask, request, name, [agent, *others])
                said, chosen_from = [], ()
                continue
            reply = rng.choice(await self._replies(ask, request, name, kind))
            goes_on = kind not in _SEVERAL or rng.random() < 0.5
            said = [*said, reply] if goes_on else []
            is_choice = kind in _CHOICES and goes_on
            chosen_from = [each for each in self.ids if each.startswith(f"{name}/")] if is_choice else ()
            if kind in ("workers", "calls"):
                pairs = zip(subs, openings, strict=True)
                await asyncio.gather(*(self._conversation(ask, sub, tag, each, depth=depth + 1) for sub, each in pairs))
            said += [Message("tool", "served", tool_call_id=each.id) for each in reply.tool_calls]

    async def _replies(self, ask: Ask, request: ChatRequest, name: str, kind: str) -> list[Message]:
        """The replies of a step: two if the request is repeated, one if it is retried with its key."""
        self._num_choices[name] = request.n
        if kind in (*_CHOICES, "twice"):
            self._differ_at.add(name)
        names = [f"{name}/{idx}" for idx in range(request.n)]
        if kind in ("twice", "retry"):
            request = replace(request, retry_key=name if kind == "retry" else None)
            sent = await self._at_once(ask, [request] * 2, [names, [f"{name}/1"] if kind == "twice" else []])
            return [reply for each in sent for reply in await each]
        replies = await self._send(ask, request, names)
        if kind == "attempts":
            told = (*request.messages, *replies, Message("user", f"go on {name}x"))
            self._num_choices[f"{name}x"] = 1
            await self._send(ask, replace(request, messages=told), [f"{name}x/0"])
        if kind in ("again", "attempts"):
            replies += await self._send(ask, request, [f"{name}/1"])
        return replies if kind != "attempts" else replies[1:]

    async def _alike(self, ask: Ask, request: ChatRequest, name: str, tags: Sequence[str]) -> None:
        """Several workers that ask the same at once, as agents of these tags; each goes on for as long as it likes."""
        self._num_choices[name] = 1
        self._differ_at.add(name)
        requests = [replace(request, agent=tag) for tag in tags]
        sent = await self._at_once(ask, requests, [[f"{name}/{idx}"] for idx in range(len(tags))])

        async def go_on(idx: int) -> None:
            said = [*request.messages, *await sent[idx]]
            for step in range(random.Random(f"{self._seed}/{name}/{idx}").randint(0, 2)):
                later = f"{name}v{idx}.{step}"
                self._num_choices[later] = 1
                said.append(Message("user", f"go on {later}"))
                said += await self._send(ask, replace(requests[idx], messages=tuple(said)), [f"{later}/0"])

        await asyncio.gather(*map(go_on, range(len(tags))))

    async def _at_once(
        self, ask: Ask, requests: Sequence[ChatRequest], names: Sequence[Sequence[str]]
    ) -> list[asyncio.Future[list[Message]]]:
        """Send requests with equal messages, each as soon as the one before has arrived, and none is answered. names:
        of the new turns of each."""
        sent: list[asyncio.Future[list[Message]]] = []
        for request, new in zip(requests, names, strict=True):
            if sent:
                step = names[0][0].partition("/")[0]
                await self._awaited.setdefault(step, asyncio.Event()).wait()
            self._num_sent += len(new)  # before its task begins, or a held answer would be released first
            sent.append(asyncio.ensure_future(self._replies_to(ask, request, new)))
        return sent

    async def _send(self, ask: Ask, request: ChatRequest, names: Sequence[str]) -> list[Message]:
        """Send a request; returns its replies. names: names of the new turns."""
        self._num_sent += len(names)
        return await self._replies_to(ask, request, names)

    async def _replies_to(self, ask: Ask, request: ChatRequest, names: Sequence[str]) -> list[Message]:
        answered = await ask(request)
        self._num_answered += len(names)
        self.ids |= {name: turn_id for name, (turn_id, _) in zip(names, answered, strict=False)}
        return [reply for _, reply in answered]


def _in_process(session: Session) -> Ask:
    async def ask(request: ChatRequest) -> Answers:
        return [(turn.id, turn.reply) for turn in await session.complete(request)]

    return ask


def _over_http(client: httpx.AsyncClient) -> Ask:
    tools = [{"type": "function", "function": {"name": tool.name, "parameters": {}}} for tool in _TOOLS]

    async def ask(request: ChatRequest) -> Answers:
        body = {"model": "default", "n": request.n, "tools": tools, "messages": [*map(message_json, request.messages)]}
        key = {} if request.retry_key is None else {"idempotency-key": request.retry_key}
        headers = {"x-ludus-agent": request.agent, **key}
        response = (await client.post("/chat/completions", json=body, headers=headers)).raise_for_status().json()
        return [(choice["turn_id"], _reply(choice["message"])) for choice in response["choices"]]

    return ask


def _reply(message: Mapping[str, Any]) -> Message:
    calls = [(call["id"], call["function"]) for call in message.get("tool_calls") or ()]
    found = tuple(ToolCall(call_id, function["name"], function["arguments"]) for call_id, function in calls)
    return Message("assistant", message["content"], tool_calls=found)
