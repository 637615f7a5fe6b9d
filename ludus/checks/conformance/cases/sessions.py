"""Sessions behind the wire: what is recorded of a conversation, what a session may use, that none sees another."""

from __future__ import annotations

import asyncio
import time

from ludus.checks.conformance import expect
from ludus.checks.conformance.asks import ASK, COLOURS, TIME_CALL, message, user
from ludus.checks.conformance.case import RECORD, SESSIONS, case
from ludus.checks.conformance.cases.tool_laws import call_and_go_on
from ludus.checks.conformance.expect import without
from ludus.checks.conformance.probe import Probe
from ludus.checks.conformance.words import CHAT, MESSAGES, RESPONSES
from ludus.episodes.limits import Limits
from ludus.types import SessionRecord


async def talk(probe: Probe, *answers: str) -> SessionRecord:
    """A conversation over Chat with these answers, and its record."""
    messages = [*ASK]
    for number, answer in enumerate(answers):
        reply = await probe.ask(answer, messages=messages)
        messages += [message("assistant", reply.text), user(f"Go on {number}.")]
    return probe.local.session.snapshot()


@case("sessions", "records", ours=RECORD)
async def turns(probe: Probe) -> None:
    """Every answer is a turn, by the id that its client got."""
    ids = [(await probe.ask()).id for _ in range(3)]
    expect.equal("ids of the turns", [turn.id for turn in probe.local.turns], ids)


@case("sessions", "records", ours=RECORD)
async def one_path(probe: Probe) -> None:
    """A conversation is one path of tokens without a fork."""
    first, second, third = (await talk(probe, "red", "green\n", " blue ")).turns
    expect.equal("prefixes", [first.prefix, second.prefix, third.prefix], [None, first.id, second.id])
    expect.equal("forks", [first.fork, second.fork, third.fork], [None, None, None])


@case("sessions", "records", ours=RECORD)
async def last_path(probe: Probe) -> None:
    """The last path holds all that was sampled, each token once, in order."""
    record = await talk(probe, "red", "green", "blue")
    expected = (
        f"<|im_start|>user\n{ASK[0]['content']}<|im_end|>\n<|im_start|>assistant\nred<|im_end|>\n"
        "<|im_start|>user\nGo on 0.<|im_end|>\n<|im_start|>assistant\ngreen<|im_end|>\n"
        "<|im_start|>user\nGo on 1.<|im_end|>\n<|im_start|>assistant\nblue<|im_end|>"
    )
    expect.equal("text of the path", probe.local.decode(record.path_ids(record.turns[-1].node)), expected)


@case("sessions", "records", ours=RECORD)
async def masks(probe: Probe) -> None:
    """Only what was sampled is marked as sampled."""
    record = await talk(probe, "red", "green")
    sampled = {turn.node: turn.sampled.token_ids for turn in record.turns}
    marked = {idx: node.token_ids for idx, node in enumerate(record.nodes) if node.turn_id is not None}
    expect.equal("nodes that a turn sampled", marked, sampled)
    texts = [probe.local.decode(token_ids) for token_ids in sampled.values()]
    expect.equal("their texts", texts, ["red<|im_end|>", "green<|im_end|>"])


@case("sessions", "records", ours=RECORD)
async def beside_tokens(probe: Probe) -> None:
    """Logprobs and versions stand beside every sampled token."""
    for turn in (await talk(probe, "red", "green")).turns:
        lengths = {len(turn.sampled.token_ids), len(turn.sampled.logprobs), len(turn.sampled.versions)}
        expect.equal("number of different lengths", len(lengths), 1)


@case("sessions", "records", ours=RECORD)
async def edited(probe: Probe) -> None:
    """History that was edited forks, by name."""
    await talk(probe, "red")
    await probe.ask(messages=[*ASK, message("assistant", "crimson"), user("Go on.")])
    expect.parts(probe.local.turns[-1], prefix=None)


@case("sessions", "records", ours=RECORD)
async def branches(probe: Probe) -> None:
    """Two questions at once are two branches of one beginning."""
    await asyncio.gather(*(probe.ask(messages=[*ASK, user(f"Question {number}.")]) for number in range(6)))
    expect.equal("number of turns", len({turn.id for turn in probe.local.turns}), 6)
    expect.equal("prefixes", {turn.prefix for turn in probe.local.turns}, {None})


@case("sessions", "records", ours=SESSIONS)
async def agents(probe: Probe) -> None:
    """Sub-agents are kept apart by their header."""
    for name in ("critic", "painter"):
        await probe.ask(extra_headers={"x-ludus-agent": name})
    expect.equal("agents", [turn.agent for turn in probe.local.turns], ["critic", "painter"])


@case("sessions", "records", ours=RECORD)
async def one_prompt(probe: Probe) -> None:
    """The three chat protocols make the same tokens of the same conversation."""
    paths = []
    for words in (CHAT, RESPONSES, MESSAGES):
        other = probe.another().but(words=words)
        await call_and_go_on(other, TIME_CALL)
        record = other.local.session.snapshot()
        paths.append([record.path_ids(turn.node) for turn in record.turns])
    first, *others = [[probe.local.decode(path) for path in own] for own in paths]
    expect.equal("paths over Responses and Messages", others, [first, first])
    expect.equal("token ids", paths[1:], [paths[0], paths[0]])


# ---- limits


@case("sessions", "limits", ours=SESSIONS)
async def turn_limit(probe: Probe) -> None:
    """A session's turns are limited by a typed 400."""
    other = probe.another(limits=Limits(max_turns=1))
    await other.ask()
    await other.refused(other.ask(), code="turn_limit", retry="false")


@case("sessions", "limits", ours=SESSIONS)
async def turn_limit_of_choices(probe: Probe) -> None:
    """N choices that go beyond the limit of turns are refused before they begin."""
    other = probe.another(limits=Limits(max_turns=2))
    await other.refused(other.ask(n=3), code="turn_limit")
    expect.equal("number of calls", len(other.local.calls), 0)


@case("sessions", "limits", ours=SESSIONS)
async def token_limit(probe: Probe) -> None:
    """A budget of tokens ends the answer where it stands, then requests."""
    other = probe.another(limits=Limits(max_tokens=3))
    expect.parts(await other.ask(COLOURS), ended="length", num_sampled=3)
    await other.refused(other.ask(), code="token_limit", retry="false")


@case("sessions", "limits", ours=SESSIONS)
async def deadline(probe: Probe) -> None:
    """After its deadline a session answers with a typed 400."""
    other = probe.another(limits=Limits(deadline_at=time.monotonic()))
    await other.refused(other.ask(), code="deadline", retry="false")


@case("sessions", "limits", ours=SESSIONS)
async def closed(probe: Probe) -> None:
    """After its end a session answers with a typed 400."""
    other = probe.another()
    await other.ask()
    other.local.session.close("the episode has ended")
    await other.refused(other.ask(), code="session_closed", retry="false")


@case("sessions", "limits", ours=SESSIONS)
async def context(probe: Probe) -> None:
    """A prompt without room for an answer names its reason."""
    await probe.refused(probe.ask(messages=[user("Ω" * 5000)]), code="context_length_exceeded")
    expect.equal("number of calls", len(probe.local.calls), 0)


@case("sessions", "limits", ours=RECORD)
async def context_room(probe: Probe) -> None:
    """An answer is cut where the context ends, with length."""
    reply = await probe.ask("red " * 300, messages=[user("Ω" * 1900)], max_tokens=1000)
    expect.parts(reply, ended="length")
    expect.equal("tokens of prompt and answer", reply.num_prompt + reply.num_sampled, 4096)


# ---- apart


@case("sessions", "keys", ours=SESSIONS)
async def apart(probe: Probe) -> None:
    """Sessions that talk at once record their own answers alone."""
    others = [probe.another() for _ in range(12)]
    for number, other in enumerate(others):
        other.script(f"first {number}", f"second {number}")
    replies = await asyncio.gather(*(other.ask() for other in others * 2))
    for number, other in enumerate(others):
        texts = [turn.reply.content for turn in other.local.turns]
        expect.equal(f"texts in the record of session {number}", texts, [f"first {number}", f"second {number}"])
        expect.equal(f"texts that session {number} got", {reply.text for reply in replies[number::12]}, {*texts})


@case("sessions", "keys", ours=SESSIONS)
async def equal_requests(probe: Probe) -> None:
    """An equal request of another session is answered by that session."""
    other = probe.another()
    texts = [(await one.ask(text)).text for one, text in ((probe, "red"), (other, "green"))]
    expect.equal("texts", texts, ["red", "green"])
    expect.equal("numbers of turns", (len(probe.local.turns), len(other.local.turns)), (1, 1))


@case("sessions", "keys", ours=SESSIONS)
async def foreign_response(probe: Probe) -> None:
    """A response of another session cannot be gone on with."""
    ours, other = probe.but(words=RESPONSES), probe.another().but(words=RESPONSES)
    foreign = await other.ask()
    body = await probe.refused(ours.ask(previous_response_id=foreign.id), 404)
    expect.equal("the error", body, without(other.local.secret))


@case("sessions", "keys", ours=SESSIONS)
async def removed(probe: Probe) -> None:
    """A session that has ended is a 401 under its secret."""
    other = probe.another()
    await other.ask()
    other.local.remove()
    await other.refused(other.ask(), 401)
