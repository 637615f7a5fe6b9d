"""Checks credit assignment against returns computed by hand, in episodes with branches, stripped reasoning, sub-agents,
workers, debates, best-of-n choices and retries; and with random agents whose answers arrive in two orders.

Knows: chat requests, what an agent returns, returns of turns.  Knows not: models, as the answers are scripted.
Each episode is processed as in a run: its requests by a recorder, with the model's tokenizer; what its agent returns by
`finish`; the rewards by the loop's computation of returns.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from ludus.checks.verify.chat import THINKING_TEMPLATE, chat_of_words
from ludus.checks.verify.order import play_tree
from ludus.checks.verify.trees import WORDS
from ludus.checks.verify.verdict import MODEL, OnDone, Verdict, ignore
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.episode import finish
from ludus.episodes.outcome import Returned
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.loop.batch import episode_returns
from ludus.models.resolve import resolve_tokenizer
from ludus.processes.blocking import run_blocking
from ludus.text.chat import ChatText
from ludus.types import ChatRequest, ForkReason, Message, ToolSpec

TOLERANCE = 1e-12
"""The returns are sums and means of a few short numbers, so any difference above rounding is an error."""
_RESEARCH = ToolSpec("research", "Finds something out.", {"type": "object"})
_CALL = '<tool_call>\n{"name": "research", "arguments": {"topic": "the capital of France"}}\n</tool_call>'
_OTHER_CALL = _CALL.replace("France", "Spain")


@dataclass(frozen=True, slots=True)
class CreditRow:
    """A turn, its computed return, and the return computed by hand."""

    episode: str
    turn: str
    follows: str | None
    fork: ForkReason | None
    reward: float | None
    """None: no reward was given to this turn itself."""
    got: float | None
    """None: no return reaches the turn."""
    by_hand: float | None

    @property
    def abs_diff(self) -> float:
        """The absolute difference; infinite if only one of the two is None."""
        if self.got is None or self.by_hand is None:
            return 0.0 if self.got is self.by_hand else math.inf
        return abs(self.got - self.by_hand)


@dataclass(frozen=True, slots=True)
class CreditResult(Verdict):
    model: str
    turns: int
    max_abs_diff: float
    rows: tuple[CreditRow, ...] = field(repr=False)
    trees: int = 0
    """Number of random agents whose answers arrived in two orders."""
    changed: tuple[int, ...] = ()
    """Numbers of agents with a return that differs in the second order."""
    misjudged: tuple[int, ...] = ()
    """Numbers of agents of whose answers others were taken as not chosen than those that they did not choose."""
    seed: int = 0
    """Seed of the random agents."""

    @classmethod
    def of(
        cls,
        model: str,
        rows: tuple[CreditRow, ...],
        *,
        trees: int = 0,
        changed: tuple[int, ...] = (),
        misjudged: tuple[int, ...] = (),
        seed: int = 0,
    ) -> CreditResult:
        return cls(model, len(rows), max(row.abs_diff for row in rows), rows, trees, changed, misjudged, seed)

    @property
    def ok(self) -> bool:
        return self.max_abs_diff <= TOLERANCE and not self.changed and not self.misjudged

    @property
    def details(self) -> Sequence[Mapping[str, object]]:
        return [asdict(row) for row in self.rows]


def verify_credit(*, trees: int = 10_000, model: str = MODEL, seed: int = 0, on_done: OnDone = ignore) -> CreditResult:
    """Do turns get the returns that a person computes by hand?

    Episodes that branch, whose reasoning is stripped, that call
    sub-agents, send workers out at once, debate, choose among answers and
    ask again are run through the recorder. The answers are written down:
    of the model only its tokenizer is used. Then random agents that do
    several things at once play twice, some over HTTP too: whichever answer
    comes first, the return of every turn must be the same, and only those
    answers may be left out that the agent did not choose.

    Example:  ludus verify credit --trees 10000
    """
    folder = resolve_tokenizer(model)
    plain = ChatText.load(folder, chat_template="chatml-tools")
    thinking = ChatText.load(folder, chat_template=str(THINKING_TEMPLATE))
    rows = run_blocking(_play_all(plain, thinking))
    changed, misjudged = run_blocking(_play_trees(trees, seed, on_done))
    return CreditResult.of(model, rows, trees=trees, changed=changed, misjudged=misjudged, seed=seed)


async def _play_trees(trees: int, seed: int, on_done: OnDone) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Numbers of random agents whose returns changed, and of those whose choice was misjudged. Every hundredth agent
    also runs over HTTP, where requests are slower."""
    text, changed, misjudged = chat_of_words(WORDS), [], []
    for number in range(trees):
        tree = f"{seed}/{number}"
        plays = [await play_tree(text, tree, order) for order in (1, 2)]
        if number % 100 == 0:
            plays.append(await play_tree(text, tree, order=3, over_http=True))
        if any(each.returns != plays[0].returns for each in plays):
            changed.append(number)
        if not all(each.is_chosen_right for each in plays):
            misjudged.append(number)
        on_done(number + 1, trees)
    return tuple(changed), tuple(misjudged)


async def _play_all(plain: ChatText, thinking: ChatText) -> tuple[CreditRow, ...]:
    thoughts = ("the middle", "half of it", "between")
    episodes = (
        # A bare number reaches every turn before it undiminished: 1 = 1 = 1.
        await _guesses("outcome", plain, 1.0, (1.0, 1.0, 1.0)),
        # r = 0.2, 0.5, 1 at discount 0.5: c = 1; b = 0.5 + 0.5 · 1 = 1; a = 0.2 + 0.5 · 1 = 0.7.
        await _guesses("discounted", plain, {"a": 0.2, "b": 0.5, "c": 1.0}, (0.7, 1.0, 1.0), turn_discount=0.5),
        await _branching(plain),
        # The template drops earlier thinking, so tokens fork at every turn; the outcome still reaches the first.
        await _guesses("reasoning stripped", thinking, -2.0, (-2.0, -2.0, -2.0), thoughts=thoughts),
        await _sub_agent(plain),
        # A reward in the middle says nothing of what came after it: c has no return, which is not the return 0.
        await _guesses("unreached", plain, {"b": 0.0}, (0.0, 0.0, None)),
        await _workers(plain),
        await _helpers(plain),
        await _best_of(plain),
        # b was not gone on with, and is named all the same: its return is its own. a = 0.5 · 1; c is not chosen.
        await _best_of(plain, by_name=True),
        await _retries(plain),
        await _asked_again(plain),
        await _attempts(plain),
        await _debate(plain),
        await _votes(plain),
        await _equal_calls(plain),
    )
    return tuple(row for rows in episodes for row in rows)


class _Play:
    """One episode: an agent, a model with scripted answers, and named turns."""

    def __init__(self, name: str, text: ChatText, answers: Sequence[str]) -> None:
        self.name = name
        self._session = Recorder(ScriptedEngine(answers, text.tokenizer), text).open(SessionSpec(name))
        self._ids: dict[str, str] = {}

    async def ask(
        self,
        turns: str,
        messages: Sequence[Message],
        *,
        agent: str = "",
        tools: tuple[ToolSpec, ...] = (),
        retry_key: str | None = None,
    ) -> list[Message]:
        """The conversation including the reply; if there are several answers, the first one. turns: names of the turns,
        separated by spaces."""
        names = turns.split()
        request = ChatRequest(tuple(messages), tools, n=len(names), agent=agent, retry_key=retry_key)
        answered = await self._session.complete(request)
        self._ids |= {name: each.id for name, each in zip(names, answered, strict=True)}
        return [*messages, answered[0].reply]

    async def rows(
        self,
        returned: float | Mapping[str, float],
        expected: Mapping[str, float | None],
        *,
        turn_discount: float = 1.0,
    ) -> list[CreditRow]:
        """The episode after its agent `returned` a number, or numbers by turn."""
        record = await self._session.aclose("the episode has ended")
        if isinstance(returned, Mapping):
            returned = {self._ids[turn]: reward for turn, reward in returned.items()}
        episode = finish(SessionSpec(self.name), record, Returned(returned), started_at=0.0)
        returns = episode_returns(episode, turn_discount)
        names = {turn_id: turn for turn, turn_id in self._ids.items()}
        return [
            CreditRow(
                episode=self.name,
                turn=names[turn.id],
                follows=None if turn.follows is None else names[turn.follows],
                fork=turn.fork,
                reward=episode.rewards.get(turn.id),
                got=returns[turn.id],
                by_hand=expected[names[turn.id]],
            )
            for turn in record.turns
        ]


async def _branching(text: ChatText) -> list[CreditRow]:
    """Three ways to go on from `a`, one of them edited: b = 1, c = 0, d = e = 0.5; a = (1 + 0 + 0.5) / 3 = 0.5."""
    play = _Play("branching", text, ("first this", "yes", "no", "well", "done"))
    said = await play.ask("a", [_user("plan")])
    await play.ask("b", [*said, _user("go on")])
    await play.ask("c", [*said, _user("try otherwise")])
    edited = [_user("plan"), Message("assistant", "first this, corrected")]
    said = await play.ask("d", [*edited, _user("go on")])
    await play.ask("e", [*said, _user("and then?")])
    return await play.rows({"b": 1.0, "c": 0.0, "e": 0.5}, {"a": 0.5, "b": 1.0, "c": 0.0, "d": 0.5, "e": 0.5})


async def _sub_agent(text: ChatText) -> list[CreditRow]:
    """A tool call is served by another agent, whose last turn was given 0.5 of its own and the main agent's 1.

    h2 = 0.5; h1 = 0.5; m2 = 1; m1 is followed by h1 and m2: (0.5 + 1) / 2 = 0.75.
    """
    play = _Play("sub-agent", text, (_CALL, "where to look?", "Paris", "It is Paris."))
    asked = await play.ask("m1", [_user("what is it?")], tools=(_RESEARCH,))
    helper = await play.ask("h1", [_user("find the capital of France")], agent="helper")
    await play.ask("h2", [*helper, _user("an atlas")], agent="helper")
    (call,) = asked[-1].tool_calls
    await play.ask("m2", [*asked, Message("tool", "Paris", tool_call_id=call.id)], tools=(_RESEARCH,))
    return await play.rows({"h2": 0.5, "m2": 1.0}, {"m1": 0.75, "h1": 0.5, "h2": 0.5, "m2": 1.0})


async def _workers(text: ChatText) -> list[CreditRow]:
    """A plan starts three parallel workers, of which one has two turns; a separate conversation, which also follows the
    plan, merges their results. The reward 1 is given to every leaf, at discount 0.5.

    w2 = w3 = more = merge = 1; w1 = 0.5 · 1 = 0.5; plan = 0.5 · (0.5 + 1 + 1 + 1) / 4 = 0.4375.
    """
    play = _Play("workers", text, ("in three parts", "a", "b", "c", "d", "all of it"))
    plan = await play.ask("plan", [_user("go")])

    async def worker(name: str) -> list[Message]:
        return await play.ask(name, [*plan, _user(f"part {name}")])

    first, *_ = await asyncio.gather(*map(worker, ("w1", "w2", "w3")))
    await play.ask("more", [*first, _user("and more?")])
    await play.ask("merge", [_user("merge what was found")])
    by_hand = {"plan": 0.4375, "w1": 0.5, "more": 1.0, "w2": 1.0, "w3": 1.0, "merge": 1.0}
    return await play.rows(1.0, by_hand, turn_discount=0.5)


async def _helpers(text: ChatText) -> list[CreditRow]:
    """Two calls of one turn are served in parallel by two sub-agents; only the main agent's last turn gets a reward.

    m2 = 1; h1 and h2 have no return, which is not a return of 0: m1 = 0.5 · 1 = 0.5.
    """
    play = _Play("helpers", text, (f"{_CALL}\n{_OTHER_CALL}", "Paris", "Madrid", "Paris and Madrid."))
    asked = await play.ask("m1", [_user("which are they?")], tools=(_RESEARCH,))
    openings = {"h1": "find the capital of France", "h2": "find the capital of Spain"}
    await asyncio.gather(*(play.ask(name, [_user(task)], agent=name) for name, task in openings.items()))
    served = [Message("tool", "found", tool_call_id=call.id) for call in asked[-1].tool_calls]
    await play.ask("m2", [*asked, *served], tools=(_RESEARCH,))
    by_hand = {"m1": 0.5, "h1": None, "h2": None, "m2": 1.0}
    return await play.rows({"m2": 1.0}, by_hand, turn_discount=0.5)


async def _best_of(text: ChatText, *, by_name: bool = False) -> list[CreditRow]:
    """Three answers, of which the agent goes on with the first; then two, with which it ends. A bare 2 at discount 0.5:
    d = e = 2; a = 0.5 · (2 + 2) / 2 = 1; b and c were not chosen.

    by_name: d is given 1, and b 0.25.
    """
    play = _Play("best of three, by name" if by_name else "best of three", text, ("one", "two", "three", "x", "y"))
    chosen = await play.ask("a b c", [_user("go")])
    await play.ask("d e", [*chosen, _user("and then?")])
    if by_name:
        by_hand = {"a": 0.5, "b": 0.25, "c": None, "d": 1.0, "e": None}
        return await play.rows({"b": 0.25, "d": 1.0}, by_hand, turn_discount=0.5)
    return await play.rows(2.0, {"a": 1.0, "b": None, "c": None, "d": 2.0, "e": 2.0}, turn_discount=0.5)


async def _retries(text: ChatText) -> list[CreditRow]:
    """A request that is sent again under its key is one turn; a question that is asked again is two, and as the agent
    goes on with neither, both are leaves. A bare 1 at discount 0.5: b = c = 1; a = 0.5 · (1 + 1) / 2 = 0.5.
    """
    play = _Play("retries", text, ("first", "second", "third"))
    await play.ask("a", [_user("go")], retry_key="once")
    said = await play.ask("a", [_user("go")], retry_key="once")
    await play.ask("b", [*said, _user("again")])
    await play.ask("c", [*said, _user("again")])
    return await play.rows(1.0, {"a": 0.5, "b": 1.0, "c": 1.0}, turn_discount=0.5)


async def _asked_again(text: ChatText) -> list[CreditRow]:
    """The best of three by a loop, which asks for each when the one before is answered; the agent goes on with the
    second. A bare 2 at discount 0.5: d = 2; b = 0.5 · 2 = 1; a and c were not chosen."""
    play = _Play("asked again", text, ("one", "two", "three", "done"))
    await play.ask("a", [_user("go")])
    chosen = await play.ask("b", [_user("go")])
    await play.ask("c", [_user("go")])
    await play.ask("d", [*chosen, _user("and then?")])
    return await play.rows(2.0, {"a": None, "b": 1.0, "c": None, "d": 2.0}, turn_discount=0.5)


async def _attempts(text: ChatText) -> list[CreditRow]:
    """A first attempt of two turns, then a second one, which ends with its first answer: nothing was chosen there.
    A bare 1 at discount 0.5: b = c = 1; a = 0.5 · 1 = 0.5."""
    play = _Play("attempts", text, ("first", "no", "second"))
    said = await play.ask("a", [_user("go")])
    await play.ask("b", [*said, _user("and then?")])
    await play.ask("c", [_user("go")])
    return await play.rows(1.0, {"a": 0.5, "b": 1.0, "c": 1.0}, turn_discount=0.5)


async def _debate(text: ChatText) -> list[CreditRow]:
    """Two agents get the same opening, one after the other; the first has two turns, the second one. Neither is an
    alternative to the other. A bare 1: p1 = p2 = c1 = 1."""
    play = _Play("debate", text, ("yes", "no", "because"))
    said = await play.ask("p1", [_user("is it so?")], agent="pro")
    await play.ask("c1", [_user("is it so?")], agent="con")
    await play.ask("p2", [*said, _user("why?")], agent="pro")
    return await play.rows(1.0, {"p1": 1.0, "c1": 1.0, "p2": 1.0})


async def _votes(text: ChatText) -> list[CreditRow]:
    """Three workers of one tag ask the same at once; one uses a tool, and all answers are merged. A bare 1 at discount
    0.5: w1 = w3 = more = merge = 1; w2 = 0.5 · 1 = 0.5."""
    play = _Play("votes", text, ("a", "b", "c", "d", "b or so"))
    _, said, _ = await asyncio.gather(*(play.ask(name, [_user("how many?")]) for name in ("w1", "w2", "w3")))
    await play.ask("more", [*said, _user("the tool says 2")])
    await play.ask("merge", [_user("which of them?")])
    by_hand = {"w1": 1.0, "w2": 0.5, "w3": 1.0, "more": 1.0, "merge": 1.0}
    return await play.rows(1.0, by_hand, turn_discount=0.5)


async def _equal_calls(text: ChatText) -> list[CreditRow]:
    """Two equal calls of one turn are served one after the other by sub-agents without a tag; the second has two turns.
    A bare 1 at discount 0.5: h1 = more = m2 = 1; h2 = 0.5 · 1 = 0.5; m1 = 0.5 · (1 + 0.5 + 1) / 3."""
    play = _Play("equal calls", text, (f"{_CALL}\n{_CALL}", "Paris", "Lyon?", "Paris", "It is Paris."))
    asked = await play.ask("m1", [_user("what is it?")], tools=(_RESEARCH,))
    task = [_user("find the capital of France")]
    await play.ask("h1", task)
    await play.ask("more", [*await play.ask("h2", task), _user("sure?")])
    served = [Message("tool", "Paris", tool_call_id=call.id) for call in asked[-1].tool_calls]
    await play.ask("m2", [*asked, *served], tools=(_RESEARCH,))
    by_hand = {"m1": 1.25 / 3, "h1": 1.0, "h2": 0.5, "more": 1.0, "m2": 1.0}
    return await play.rows(1.0, by_hand, turn_discount=0.5)


async def _guesses(
    name: str,
    text: ChatText,
    returned: float | Mapping[str, float],
    expected: Sequence[float | None],
    *,
    thoughts: Sequence[str] = ("", "", ""),
    turn_discount: float = 1.0,
) -> list[CreditRow]:
    """Three turns in a row, each with a thought before its answer where thoughts are given."""
    pairs = zip(thoughts, ("10", "5", "7"), strict=True)
    answers = [f"<think>\n{thought}\n</think>\n\n{answer}" if thought else answer for thought, answer in pairs]
    play = _Play(name, text, answers)
    said = await play.ask("a", [_user("guess")])
    said = await play.ask("b", [*said, _user("lower")])
    await play.ask("c", [*said, _user("higher")])
    return await play.rows(returned, dict(zip("abc", expected, strict=True)), turn_discount=turn_discount)


def _user(text: str) -> Message:
    return Message("user", text)
