"""Requests that a server must refuse or take: through an SDK those of the tables, as bytes what no SDK would send."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from typing import Any

import yaml

from ludus.checks.conformance import expect
from ludus.checks.conformance.asks import ASK, check_error
from ludus.checks.conformance.case import EXTENSION, named
from ludus.checks.conformance.expect import over
from ludus.checks.conformance.probe import Probe
from ludus.checks.conformance.words import MESSAGES, Fields

UNKNOWN = {"previous_response_id": "resp_nobody"}
Sent = Callable[[Probe], Any]
"""The body: a JSON value, or bytes."""


def bytes_of(probe: Probe) -> bytes:
    return json.dumps(probe.fields()).encode()


def cold_stream(probe: Probe) -> Fields:
    return probe.fields(temperature=-1, stream=True)


# Requests without an SDK, and the statuses that are right; without any, 400 and 422.
BODIES: dict[str, tuple[str, Sent, *tuple[int, ...]]] = {
    "errors errors/no_json": ("a body that is no JSON", lambda _: b"{messages: []}"),
    "errors errors/cut_json": ("a body that is cut", lambda p: bytes_of(p)[:-2]),
    "errors errors/empty_body": ("an empty body", lambda _: b""),
    "errors errors/list_body": ("a body that is a list", lambda p: [p.fields()]),
    "errors errors/no_utf8": ("a body that is no UTF-8", lambda p: bytes_of(p).replace(b"colours", b"\xff\xfe\xfd")),
    "errors errors/deep_json": ("JSON nested deep", lambda _: b'{"messages": ' + b"[" * 100_000, 400, 413, 422),
    "errors errors/no_messages": ("a request without messages", lambda p: {"model": p.model}, 400),
    "errors errors/stream_in_words": ("a stream in words", lambda p: p.fields(stream="please")),
    "errors errors/refused_stream": ("a stream that cannot be", lambda p: p.fields(n=0, stream=True)),
    "responses errors/no_input": ("a request without input", lambda p: {"model": p.model}, 400),
    "responses errors/refused_stream": ("a stream that cannot be", cold_stream),
    "responses errors/unknown_previous": ("an unknown earlier response", lambda p: p.fields(**UNKNOWN), 404, 400),
    "messages limits/no_limit": ("a request without max_tokens", lambda p: {"model": p.model, "messages": ASK}, 400),
    "messages errors/error_shape": ("an empty list of messages", lambda p: p.fields(messages=[]), 400),
    "messages errors/no_json": ("a body that is no JSON", lambda _: b"{", 400),
    "messages errors/refused_stream": ("a stream that cannot be", cold_stream, 400),
    "completions errors/no_prompt": ("a request without a prompt", lambda p: {"model": p.model}),
}


async def _refuses(fields: Fields, error: Fields, probe: Probe) -> None:
    await probe.refused(probe.ask(**fields), **error)


async def _refuses_body(sent: Sent, statuses: tuple[int, ...], probe: Probe) -> None:
    body, is_messages = sent(probe), probe.words is MESSAGES
    answer = await probe.post(content=body if isinstance(body, bytes) else json.dumps(body).encode())
    fields = {"type": "invalid_request_error"} if is_messages else {}
    check_error(answer, *(statuses or (400, 422)), of_messages=is_messages, **fields)


async def _takes(requests: list[Fields], probe: Probe) -> None:
    for fields in requests:
        reply = await probe.ask(**fields)
        expect.parts(reply, num_sampled=over(0), parts=expect.FULL)


def _rows(table: str) -> Iterator[tuple[str, list[Any]]]:
    """The rows of a table beside the suite, by the names of their cases."""
    text = (resources.files("ludus.checks.conformance") / table).read_text("utf-8")
    for protocol, topics in yaml.safe_load(text).items():
        for topic, rows in topics.items():
            yield from ((f"{protocol} {topic}/{title}", row) for title, row in rows.items())


REFUSED = tuple(
    named(name, f"{what} is refused", partial(_refuses, fields, *error or [{}]), ours=EXTENSION if error else None)
    for name, (what, fields, *error) in _rows("refused.yaml")
)
REFUSED_BODIES = tuple(
    named(name, f"{what} is refused", partial(_refuses_body, sent, tuple(statuses)))
    for name, (what, sent, *statuses) in BODIES.items()
)
TAKEN = tuple(named(name, what, partial(_takes, requests)) for name, (what, *requests) in _rows("taken.yaml"))
