"""Laws of text that several protocols have in common, written once: text, streams, stops, limits, headers, keys."""

from __future__ import annotations

import itertools
import json
from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.asks import ASK, BLANKS, COLOURS, UNICODE, check_error, message
from ludus.checks.conformance.case import EXTENSION, RECORD, SCRIPT, SESSIONS, law
from ludus.checks.conformance.expect import TEXT, containing, over
from ludus.checks.conformance.probe import Probe, events_of
from ludus.checks.conformance.replies import Reply
from ludus.checks.conformance.sse import DONE
from ludus.checks.conformance.words import CHAT, MESSAGES, RESPONSES, USAGE_CHUNK

# What the engine calls by another name.
OF_ENGINE = {"max_tokens": "max_new_tokens", "max_output_tokens": "max_new_tokens"}


def smallest_limit(probe: Probe) -> int:
    """So few tokens that they cut an answer; OpenAI's own Responses take no limit below 16."""
    return 16 if probe.own is None and probe.words is RESPONSES else 3


# ---- text


@law("text/usage", "chat responses messages completions")
async def usage(probe: Probe) -> None:
    """Usage counts what was read, what was written, and their sum."""
    reply = await probe.ask()
    expect.parts(reply, num_prompt=over(0), num_sampled=over(0))
    if probe.words is not MESSAGES:
        expect.parts(reply.raw.usage, total_tokens=reply.num_prompt + reply.num_sampled)


@law("text/exact_usage", "chat responses messages", ours=RECORD)
async def exact_usage(probe: Probe) -> None:
    """Usage is what the engine got and sampled, its last token included."""
    reply = await probe.ask()
    (observed,) = probe.local.calls
    expect.parts(reply, num_prompt=len(observed.call.prompt_ids), num_sampled=len(observed.token_ids))


@law("text/exact", "chat messages completions", ours=SCRIPT)
async def exact(probe: Probe) -> None:
    """The text is what the model sampled, to the character."""
    expect.parts(await probe.ask(BLANKS), text=BLANKS)


@law("text/system_message", "chat responses=instructions messages=system")
async def system(probe: Probe) -> None:
    """A system text is read in all its shapes: it makes the prompt longer."""
    plain = (await probe.ask()).num_prompt
    first, *others = [(await probe.ask(**fields)).num_prompt for fields in probe.words.system]
    expect.equal("tokens of the system text", first - plain, over(4))
    expect.equal("tokens of the prompt in other shapes", others, [first] * len(others))


@law("text/content_parts", "chat responses=input_shapes messages=blocks")
async def shapes(probe: Probe) -> None:
    """Content in parts is the same prompt as the text in one piece."""
    first, *others = [(await probe.ask(**fields)).num_prompt for fields in probe.words.shapes]
    expect.equal("tokens of the prompts", others, [first] * len(others))


@law("text/reply_as_history", "chat responses=items_back messages=blocks_back")
async def sent_back(probe: Probe) -> None:
    """A reply can be sent back as the SDK's own object, and the prompt grows by it."""
    first = await probe.ask()
    expect.parts(await probe.ask(**probe.words.goes_on(first, ASK, "More.")), num_prompt=over(first.num_prompt))


@law("text/shown_id", "responses messages completions", ours=RECORD)
async def shown_id(probe: Probe) -> None:
    """Its id has the protocol's beginning and leads to the turn."""
    shown = (await probe.ask()).id
    expect.equal("id", shown, f"{probe.words.id_prefix}{probe.local.turns[0].id.split('-')[-1]}")


@law("unicode/unicode_stream", "chat responses=unicode_text messages=unicode_text completions", ours=SCRIPT)
async def unicode_text(probe: Probe) -> None:
    """Text of many scripts arrives to the character, at once and streamed."""
    expect.parts(await probe.both(UNICODE), text=UNICODE)


@law("n/two_choices", "chat completions=two")
async def two_choices(probe: Probe) -> None:
    """n=2 gives two choices, numbered from 0."""
    choices = (await probe.answer(n=2, temperature=1, seed=3)).choices
    expect.equal("indices", [choice.index for choice in choices], [0, 1])


# ---- streaming


@law("streaming/adds_up", "chat responses completions")
async def adds_up(probe: Probe) -> None:
    """The deltas add up to the answer that the same request gets at once."""
    await probe.both()


async def helped(probe: Probe, *answers: str, **fields: Any) -> Reply:
    """What the SDK's stream helper puts together."""
    probe.script(*answers)
    async with probe.sdk.stream(**probe.arguments(**fields)) as stream:
        is_chat = probe.words is CHAT
        return probe.words.whole(await (stream.get_final_completion() if is_chat else stream.get_final_message()))


@law("streaming/helper", "chat messages")
async def helper(probe: Probe) -> None:
    """The SDK's stream helper puts together the answer that comes at once."""
    # That of Chat refuses answers that a limit cut, so this one has to end by itself.
    fields: dict[str, Any] = {"seed": 5, "stop": [" "]} if probe.words is CHAT else {}
    whole = await probe.ask(**fields)
    reply = await helped(probe, **fields, **probe.words.counted)
    expect.equal("the reply and its tokens", (reply, reply.num_sampled), (whole, whole.num_sampled))


@law("streaming/same_usage", "chat responses messages=end")
async def same_usage(probe: Probe) -> None:
    """Streamed, the end and the counts of tokens are those of the answer at once."""
    whole, streamed = await probe.ask(), await probe.stream(**probe.words.counted)
    expect.parts(streamed, ended=whole.ended, num_prompt=whole.num_prompt, num_sampled=whole.num_sampled)


@law("streaming/wire", "chat responses messages")
async def on_the_wire(probe: Probe) -> None:
    """The stream is text/event-stream, every event one line of JSON under its type's name."""
    answer = await probe.post(stream=True)
    expect.equal("content-type", answer.headers.get("content-type"), expect.beginning("text/event-stream"))
    events = [event for event in events_of(answer) if event.data != DONE]
    for event in events:
        expect.equal("name of the event", event.name, expect.json_object("the event", event.data).get("type"))
    holders = [event.json.get("response", event.json.get("message", event.json)) for event in events]
    expect.equal("number of different ids", len({holder["id"] for holder in holders if "id" in holder}), 1)
    if probe.words is MESSAGES:
        expect.equal("the last event", events[-1].name, "message_stop")


@law("streaming/order", "responses messages")
async def order(probe: Probe) -> None:
    """A text opens, its deltas come, and all is closed in turn; what is thought stands before."""
    kinds = [event.type for event in await probe.events() if event.type != "ping" and "reasoning" not in event.type]
    names = [kind.removeprefix("response.") for kind, _ in itertools.groupby(kinds)]
    expect.equal("order of the events", " ".join(names), containing(probe.words.order))


@law("streaming/done", "chat completions")
async def done(probe: Probe) -> None:
    """The stream ends with [DONE], once, after chunks of one id and kind."""
    *events, last = events_of(await probe.post(stream=True))
    expect.equal("the last event", last.data, DONE)
    expect.equal("number of other [DONE]", sum(event.data == DONE for event in events), 0)
    heads = {(event.json["id"], event.json["object"]) for event in events}
    expect.equal("number of different ids and objects", len(heads), 1)


@law("streaming/usage_chunk", "chat completions")
async def usage_chunk(probe: Probe) -> None:
    """Asked for, usage comes in a last chunk without choices, and in no other."""
    *chunks, last = await probe.events(**USAGE_CHUNK)
    expect.equal("choices of the last chunk", last.choices, [])
    expect.that("usage of the last chunk", last.usage is not None, "counts", last.usage)
    expect.equal("other chunks with usage", [chunk for chunk in chunks if chunk.usage is not None], [])


@law("streaming/truly_streamed", "chat messages", ours=SCRIPT)
async def truly_streamed(probe: Probe) -> None:
    """Text leaves while it is sampled: a client has the first words before the last."""
    token_gate = probe.local.hold_tokens(3)
    text = early = ""
    async with probe.lines(COLOURS) as lines:
        async for line in lines:
            if line.startswith("data: {"):
                text += probe.words.text_in(json.loads(line.removeprefix("data: ")))
            if text and not token_gate.is_released:
                early = text
                token_gate.release()
    expect.that("text before the engine went on", COLOURS.startswith(early) and early != COLOURS, "a beginning", early)
    expect.equal("the whole text", text, COLOURS)


# ---- stop, limits, sampling


@law("stop/stop_string", "chat messages=stop_general completions=stop")
async def stop(probe: Probe) -> None:
    """An answer ends before its stop string."""
    expect.parts(await probe.ask(**probe.words.stop), text=expect.without("e"))


@law("limits/limit", "chat=max_tokens responses messages completions")
async def limit(probe: Probe) -> None:
    """A limit ends an answer: not one token more, and its end is that of a cut."""
    most = smallest_limit(probe)
    reply = await probe.ask(COLOURS, **{probe.words.limit: most})
    expect.parts(reply, num_sampled=most, ended=probe.words.cut)


@law("limits/limit_streamed", "chat responses")
async def limit_streamed(probe: Probe) -> None:
    """A limit streamed: the end is that of a cut too."""
    expect.parts(await probe.stream(COLOURS, **{probe.words.limit: smallest_limit(probe)}), ended=probe.words.cut)


@law("sampling fields/fields_act", "chat responses messages", ours=RECORD)
async def fields_act(probe: Probe) -> None:
    """What a request names is what the engine samples with."""
    named = probe.words.sampling
    await probe.post(**named)
    expect.parts(probe.local.sampling, **{OF_ENGINE.get(name, name): value for name, value in named.items()})


@law("sampling fields/same_seed", "chat completions=seed")
async def same_seed(probe: Probe) -> None:
    """The same seed gives the same answer."""
    first, second = [(await probe.ask(temperature=1, seed=11, max_tokens=16)).text for _ in range(2)]
    expect.equal("the second answer", second, first)


# ---- errors, headers, keys, retries


@law("errors/sdk_error", "errors messages")
async def sdk_error(probe: Probe) -> None:
    """The SDK raises BadRequestError with the error's message."""
    wrong = {"messages": [message("king", "Hello.")]} if probe.words is MESSAGES else {"temperature": -1}
    await probe.refused(probe.ask(**wrong), kind="BadRequestError", message=TEXT)


@law("errors/unknown_name", "chat responses messages completions", ours=EXTENSION, turns=0)
async def unknown_name(probe: Probe) -> None:
    """A model that is not there is refused by name, with those that are; nothing is sampled in its place."""
    of_messages = probe.words is MESSAGES
    code = {"type": "not_found_error"} if of_messages else {"code": "model_not_found"}
    answer = await probe.post(model="no-such-model")
    check_error(answer, 404, of_messages=of_messages, message=containing("there is default"), **code)


@law("headers/ignored", "chat responses messages completions", ours=EXTENSION)
async def ignored(probe: Probe) -> None:
    """Fields without effect are named in x-ludus-ignored, streamed too."""
    for stream in (False, True):
        answer = await probe.post(**probe.words.ignored, stream=stream)
        names = answer.headers.get("x-ludus-ignored", "").split(", ")
        expect.equal("x-ludus-ignored", sorted(names), sorted(probe.words.ignored))


@law("keys/bearer", "chat messages=key", ours=SESSIONS, turns=1)
async def bearer(probe: Probe) -> None:
    """Without a secret in the URL the SDK's key names the session."""
    await probe.but(key=probe.local.secret, root=probe.local.gateway).ask()


@law("keys/wrong_key", "chat messages", ours=SESSIONS)
async def wrong_key(probe: Probe) -> None:
    """A key that names no session is a 401, and is not written back."""
    asked = probe.but(key="sk-a-wrong-key-0123456789", root=probe.local.gateway).ask()
    error = {"type": "authentication_error"} if probe.words is MESSAGES else {"code": "invalid_api_key"}
    body = await probe.refused(asked, 401, kind="AuthenticationError", **error)
    expect.equal("the error", body, expect.without("0123456789"))


@law("retries/retry", "chat=sdk_retry responses messages completions", ours=SCRIPT, turns=1)
async def retry(probe: Probe) -> None:
    """An answer that is asked for again is one turn and one answer."""
    probe.script("red", "green")
    first, again = [(await probe.post(headers={"x-stainless-retry-count": count})).json() for count in ("0", "1")]
    expect.equal("the second answer", again, first)
