"""Sessions behind the wire: what is recorded of a conversation, what a session may use, that none sees another."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import RECORD, SESSIONS, case
from ludus.checks.conformance.cases.asks import CHAT_TOOLS, MESSAGE_TOOLS, RESPONSE_TOOLS, TIME_ARGUMENTS, TIME_CALL
from ludus.checks.conformance.probe import ASK, Probe
from ludus.episodes.limits import Limits
from ludus.types import SessionRecord

RESULT = "noon"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def talk(probe: Probe, *answers: str) -> SessionRecord:
    """A conversation over Chat with these answers, and its record."""
    probe.script(*answers)
    messages: list[dict[str, Any]] = [*ASK]
    for number in range(len(answers)):
        reply = (await probe.chat(messages=messages)).choices[0].message
        messages += [{"role": "assistant", "content": reply.content}, user(f"Go on {number}.")]
    return probe.local.session.snapshot()


@case("sessions", "records", ours=RECORD)
async def turns(probe: Probe) -> None:
    """Every answer is a turn, by the id that its client got."""
    ids = [(await probe.chat()).id for _ in range(3)]
    expect.equal("ids of the turns", [turn.id for turn in probe.local.turns], ids)


@case("sessions", "records", ours=RECORD)
async def one_path(probe: Probe) -> None:
    """A conversation is one path of tokens without a fork."""
    record = await talk(probe, "red", "green\n", " blue ")
    expect.equal("forks", [turn.fork for turn in record.turns], [None, None, None])
    expect.equal("prefixes", [turn.prefix for turn in record.turns], [None, *[turn.id for turn in record.turns[:-1]]])


@case("sessions", "records", ours=RECORD)
async def last_path(probe: Probe) -> None:
    """The last path holds all that was sampled, each token once, in its place."""
    record = await talk(probe, "red", "green", "blue")
    text = probe.local.decode(record.path_ids(record.turns[-1].node))
    expected = (
        f"<|im_start|>user\n{ASK[0]['content']}<|im_end|>\n<|im_start|>assistant\nred<|im_end|>\n"
        "<|im_start|>user\nGo on 0.<|im_end|>\n<|im_start|>assistant\ngreen<|im_end|>\n"
        "<|im_start|>user\nGo on 1.<|im_end|>\n<|im_start|>assistant\nblue<|im_end|>"
    )
    expect.equal("text of the path", text, expected)


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
    record = await talk(probe, "red", "green")
    for turn in record.turns:
        lengths = {len(turn.sampled.token_ids), len(turn.sampled.logprobs), len(turn.sampled.versions)}
        expect.equal("number of different lengths", len(lengths), 1)


@case("sessions", "records", ours=RECORD)
async def edited(probe: Probe) -> None:
    """History that was edited forks, by name."""
    await talk(probe, "red")
    await probe.chat(messages=[*ASK, {"role": "assistant", "content": "crimson"}, user("Go on.")])
    last = probe.local.turns[-1]
    expect.equal("prefix of the second turn", last.prefix, None)


@case("sessions", "records", ours=RECORD)
async def branches(probe: Probe) -> None:
    """Two questions at once are two branches of one beginning."""
    await asyncio.gather(*(probe.chat(messages=[*ASK, user(f"Question {number}.")]) for number in range(6)))
    expect.equal("number of turns", len({turn.id for turn in probe.local.turns}), 6)
    expect.equal("prefixes", {turn.prefix for turn in probe.local.turns}, {None})


@case("sessions", "records", ours=SESSIONS)
async def agents(probe: Probe) -> None:
    """Sub-agents are told apart by their header."""
    for name in ("critic", "painter"):
        await probe.chat(extra_headers={"x-ludus-agent": name})
    expect.equal("agents", [turn.agent for turn in probe.local.turns], ["critic", "painter"])


@case("sessions", "records", ours=RECORD)
async def one_prompt(probe: Probe) -> None:
    """The three chat protocols make the same tokens of the same conversation."""
    probes = [probe, probe.another(), probe.another()]
    for one in probes:
        one.script(TIME_CALL, "It is noon.")
    for one, play in zip(probes, (_play_chat, _play_responses, _play_messages), strict=True):
        await play(one)
    paths = [[one.local.session.snapshot().path_ids(turn.node) for turn in one.local.turns] for one in probes]
    expect.equal("paths over Responses", _texts(probe, paths[1]), _texts(probe, paths[0]))
    expect.equal("paths over Messages", _texts(probe, paths[2]), _texts(probe, paths[0]))
    expect.equal("token ids", paths[1:], [paths[0], paths[0]])


def _texts(probe: Probe, paths: list[tuple[int, ...]]) -> list[str]:
    return [probe.local.decode(path) for path in paths]


async def _play_chat(probe: Probe) -> None:
    fields: dict[str, Any] = {"tools": CHAT_TOOLS}
    (call,) = (await probe.chat(**fields)).choices[0].message.tool_calls
    function = {"name": call.function.name, "arguments": call.function.arguments}
    called = {"id": call.id, "type": "function", "function": function}
    await probe.chat(
        messages=[
            *ASK,
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": call.id, "content": RESULT},
        ],
        **fields,
    )


async def _play_responses(probe: Probe) -> None:
    fields: dict[str, Any] = {"tools": RESPONSE_TOOLS}
    (call,) = (await probe.respond(**fields)).output
    item = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": TIME_ARGUMENTS}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    await probe.respond(input=[*ASK, item, result], **fields)


async def _play_messages(probe: Probe) -> None:
    fields: dict[str, Any] = {"tools": MESSAGE_TOOLS}
    (block,) = (await probe.message(**fields)).content
    used = {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input}
    result = {"type": "tool_result", "tool_use_id": block.id, "content": RESULT}
    await probe.message(
        messages=[*ASK, {"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}], **fields
    )


# ---- limits


async def _stopped(probe: Probe, code: str) -> None:
    """The next request is a typed 400 that no SDK sends again."""
    told = await probe.refused(probe.chat())
    expect.equal("code", told.error.get("code"), code)
    expect.equal("x-should-retry", told.headers.get("x-should-retry"), "false")


@case("sessions", "limits", ours=SESSIONS)
async def turn_limit(probe: Probe) -> None:
    """A session's turns are limited by a typed 400."""
    other = probe.another(limits=Limits(max_turns=1))
    await other.chat()
    await _stopped(other, "turn_limit")


@case("sessions", "limits", ours=SESSIONS)
async def turn_limit_of_choices(probe: Probe) -> None:
    """N choices that go beyond the limit of turns are refused before they begin."""
    other = probe.another(limits=Limits(max_turns=2))
    told = await other.refused(other.chat(n=3))
    expect.equal("code", told.error.get("code"), "turn_limit")
    expect.equal("number of calls", len(other.local.calls), 0)


@case("sessions", "limits", ours=SESSIONS)
async def token_limit(probe: Probe) -> None:
    """A budget of tokens ends the answer where it stands, then requests."""
    other = probe.another(limits=Limits(max_tokens=3))
    other.script("red green blue white black")
    answer = await other.chat()
    expect.equal("finish_reason", answer.choices[0].finish_reason, "length")
    expect.equal("completion_tokens", answer.usage.completion_tokens, 3)
    await _stopped(other, "token_limit")


@case("sessions", "limits", ours=SESSIONS)
async def deadline(probe: Probe) -> None:
    """After its deadline a session answers with a typed 400."""
    await _stopped(probe.another(limits=Limits(deadline_at=time.monotonic())), "deadline")


@case("sessions", "limits", ours=SESSIONS)
async def closed(probe: Probe) -> None:
    """After its end a session answers with a typed 400."""
    other = probe.another()
    await other.chat()
    other.local.session.close("the episode has ended")
    await _stopped(other, "session_closed")


@case("sessions", "limits", ours=SESSIONS)
async def context(probe: Probe) -> None:
    """A prompt without room for an answer names its reason."""
    told = await probe.refused(probe.chat(messages=[user("Ω" * 5000)]))
    expect.equal("code", told.error.get("code"), "context_length_exceeded")
    expect.equal("number of calls", len(probe.local.calls), 0)


@case("sessions", "limits", ours=RECORD)
async def context_room(probe: Probe) -> None:
    """An answer is cut where the context ends, with length."""
    probe.script("red " * 300)
    messages = [user("Ω" * 1900)]
    answer = await probe.chat(messages=messages, max_tokens=1000)
    expect.equal("finish_reason", answer.choices[0].finish_reason, "length")
    expect.equal("total_tokens", answer.usage.total_tokens, 4096)


# ---- apart


@case("sessions", "keys", ours=SESSIONS)
async def apart(probe: Probe) -> None:
    """Sessions that talk at once record their own answers alone."""
    others = [probe.another() for _ in range(12)]
    for number, other in enumerate(others):
        other.script(f"first {number}", f"second {number}")
    answers = await asyncio.gather(*(other.chat() for other in others * 2))
    for number, other in enumerate(others):
        texts = [turn.reply.content for turn in other.local.turns]
        expect.equal(f"texts in the record of session {number}", texts, [f"first {number}", f"second {number}"])
        own = {answers[number].choices[0].message.content, answers[number + 12].choices[0].message.content}
        expect.equal(f"texts that session {number} got", own, set(texts))


@case("sessions", "keys", ours=SESSIONS)
async def equal_requests(probe: Probe) -> None:
    """An equal request of another session is answered by that session."""
    other = probe.another()
    probe.script("red")
    other.script("green")
    texts = [(await one.chat()).choices[0].message.content for one in (probe, other)]
    expect.equal("texts", texts, ["red", "green"])
    expect.equal("numbers of turns", (len(probe.local.turns), len(other.local.turns)), (1, 1))


@case("sessions", "keys", ours=SESSIONS)
async def foreign_response(probe: Probe) -> None:
    """A response of another session cannot be gone on with."""
    other = probe.another()
    foreign = (await other.respond()).id
    told = await probe.refused(probe.respond(previous_response_id=foreign), status=404)
    expect.that("the error", other.local.secret not in str(told.body), "without the secret", told.body)


@case("sessions", "keys", ours=SESSIONS)
async def removed(probe: Probe) -> None:
    """A session that has ended is a 401 under its secret."""
    other = probe.another()
    await other.chat()
    other.local.remove()
    await other.refused(other.chat(), status=401)
