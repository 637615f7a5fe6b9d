"""Whatever a client sends: an answer in the protocol's shape, never a 500, never a hang, never a lost turn.

`make fuzz` sends at least 10,000 bodies; otherwise it is some hundreds.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.archive import MemoryArchive
from ludus.episodes.episodes import Episodes
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.gateway.app import GatewayOptions, build_app
from ludus.gateway.dialects.table import DIALECTS
from ludus.text.chat import ChatText
from ludus.types import Call, Episode
from tests.http.foreign import FOREIGN, HEADERS

ADMIN_KEY = "the-admin-key-of-the-fuzz"
PATIENCE_S = 20.0  # of one answer, which takes a millisecond: what takes longer hangs
ANSWERS = (
    "I say 7.",
    '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
    "<think>hm</think>\n7 \U0001f600",
    '{"a": 1}',
    '<tool_call>{"name": ',
    "",
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
SHARED = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3, "stream": True, "metadata": {"a": "b"}}
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
FUNCTION = {"name": "add", "description": "Adds.", "parameters": SCHEMA}
BODIES: dict[str, list[dict[str, Any]]] = {
    "chat": [
        {
            **SHARED,
            "messages": [
                {"role": "system", "content": "Play."},
                {"role": "user", "content": [{"type": "text", "text": "Guess."}]},
                {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "3"},
            ],
            "tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}],
            "tool_choice": {"type": "function", "function": {"name": "add"}},
            "parallel_tool_calls": False,
            "max_tokens": 8,
            "stop": ["x"],
            "n": 2,
            "logprobs": True,
            "top_logprobs": 2,
            "logit_bias": {"5": 1},
            "stream_options": {"include_usage": True},
        },
        {
            "messages": [{"role": "user", "content": "Guess."}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
            "reasoning_effort": "low",
            "presence_penalty": 0.5,
            "max_completion_tokens": 4,
        },
    ],
    "completions": [{**SHARED, "prompt": "Guess", "max_tokens": 4, "logprobs": 2}, {"prompt": [[5, 6], [7]], "n": 2}],
    "messages": [
        {
            **{name: SHARED[name] for name in ("temperature", "top_p", "top_k", "stream")},
            "max_tokens": 8,
            "system": [{"type": "text", "text": "Play.", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "Guess."},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "3"}]},
            ],
            "tools": [{"name": "add", "description": "Adds.", "input_schema": SCHEMA}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "stop_sequences": ["x"],
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        }
    ],
    "responses": [
        {
            **{name: SHARED[name] for name in ("temperature", "top_p", "stream", "metadata")},
            "instructions": "Play.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Guess."}]},
                {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
                {"type": "function_call_output", "call_id": "c1", "output": "3"},
            ],
            "tools": [{"type": "function", **FUNCTION, "strict": False}],
            "tool_choice": "required",
            "max_output_tokens": 8,
            "text": {"format": {"type": "text"}},
            "reasoning": {"effort": "low"},
            "store": False,
            "include": ["message.output_text.logprobs"],
        },
        {"input": "Guess.", "previous_response_id": "resp_x"},
    ],
}
# The answers here are written down; where a body's grammar or bias forbids one, that is no fault of the gateway.
SCRIPT_FAULT = b"forbids; write another answer"
MOUNT = "/v1"  # where the key alone names the session
ADMINISTRATION: dict[str, dict[str, Any]] = {
    "/sessions": {"id": "mine", "group_id": "g", "group_size": 2, "metadata": {"a": [1]}, "max_turns": 3, "agent": "a"},
    "/sessions/current/rewards": {"reward": 1.0, "completion_id": "chatcmpl-x"},
    "/sessions/current/end": {"outcome": "ok", "reason": "", "metrics": {"success": 1.0}},
}

WORDS = ("", "auto", "required", "none", "user", "function", "<|im_end|>", "{{ x }}", 0, -1, 1e308, 10**400)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(
        ["", "auto", "required", "none", "user", "function", "<|im_end|>", "{{ x }}", 0, -1, 1e308, 10**400]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
CHANGES = st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(["set", "drop", "add", "twin"]), JSON), max_size=4)


class Kept(MemoryArchive):
    """Tells all that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Episode] = []

    def keep(self, episode: Episode, spec: SessionSpec) -> None:
        super().keep(episode, spec)
        self.kept.append(episode)


class Lab:
    """A gateway with every protocol, asked as a server asks its application."""

    def __init__(self, text: ChatText) -> None:
        self.engine = ScriptedEngine(_answer, text.tokenizer, context_length=1000)
        self.archive = Kept()
        self.episodes = Episodes(Recorder(self.engine, text), self.archive)
        options = GatewayOptions(open_mode=self.episodes.open_for_key, episodes=self.episodes, admin_key=ADMIN_KEY)
        self.app = build_app(self.episodes.keys, options)
        self.loop = asyncio.new_event_loop()
        self.num_bodies = 0

    def ask(self, path: str, body: bytes, key: str = "fuzz", **scope: Any) -> tuple[int, bytes]:
        """Status and body of the answer. Raises TimeoutError where none comes."""
        self.num_bodies += 1
        return self.loop.run_until_complete(asyncio.wait_for(self._ask(path, body, key, scope), PATIENCE_S))

    async def _ask(self, path: str, body: bytes, key: str, others: dict[str, Any]) -> tuple[int, bytes]:
        sent: list[Any] = []
        asked = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            return next(asked, None) or await asyncio.Future()

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"x-api-key", key.encode()), (b"anthropic-version", b"2023-06-01")][
            : 2 if "messages" in path else 1
        ]
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
            "http_version": "1.1",
            "scheme": "http",
            "server": ("gateway", 80),
            "root_path": "",
            **others,
        }
        await self.app(scope, receive, send)
        assert not sent[-1]["more_body"] if "more_body" in sent[-1] else True
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])

    def num_recorded(self) -> int:
        """Sampled tokens of every session, ended or not."""
        self.loop.run_until_complete(self.episodes.aclose("the fuzz is over"))
        return sum(episode.session.num_sampled_tokens for episode in self.archive.kept)


def _answer(call: Call) -> str:
    return ANSWERS[hash(call.prompt_ids) % len(ANSWERS)]


@pytest.fixture(scope="module")
def lab(text: ChatText) -> Iterator[Lab]:
    """One for all bodies; at its end nothing was lost."""
    lab = Lab(text)
    yield lab
    assert lab.num_recorded() == lab.engine.stats().num_sampled_tokens > 0
    lab.loop.close()


def positions(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in `value` with each of its keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from positions(item)


def changed(body: dict[str, Any], changes: list[tuple[int, str, Any]]) -> dict[str, Any]:
    body = copy.deepcopy(body)
    for number, how, new in changes:
        found = list(positions(body))
        if not found:
            break
        container, key = found[number % len(found)]
        if how == "set":
            container[key] = new
        elif how == "drop":
            del container[key]
        elif how == "add" and isinstance(container, dict):
            container[str(new)[:12]] = new
        elif isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
    return body


def check(lab: Lab, path: str, body: Any, key: str = "fuzz") -> None:
    """The answer is one of the protocol's, or a typed error."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, answer = lab.ask(path, raw, key)
    if SCRIPT_FAULT in answer:
        return
    assert status < 500, (path, raw, answer)
    if answer.startswith((b"data:", b"event:", b":")):
        assert b"internal_error" not in answer, (path, raw, answer)
        return
    written = json.loads(answer)
    assert (written.get("error") is not None) == (status >= 400), (path, raw, answer)


# Of one endpoint; with the profile `fuzz` there are 10,000 of all together.
FUZZ = settings(
    max_examples=settings.default.max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
PATHS = [(name, path) for name, dialect in DIALECTS.items() for path in dialect.paths[:1]]
PATHS += [(name, path) for name, dialect in DIALECTS.items() if dialect.counter for path in dialect.counter.paths[:1]]


@pytest.mark.parametrize(("name", "path"), PATHS)
def test_changed_bodies_of_every_protocol(lab: Lab, name: str, path: str) -> None:
    """A body that a client could send, with values, fields and entries changed at random paths."""

    @FUZZ
    @given(body=st.sampled_from(BODIES[name]), changes=CHANGES, stream=st.booleans())
    def fuzz(body: dict[str, Any], changes: list[tuple[int, str, Any]], stream: bool) -> None:
        whole = {**body, "stream": stream} if path in DIALECTS[name].paths else {**body}
        check(lab, MOUNT + path, changed(whole, changes))

    fuzz()


@pytest.mark.parametrize("path", [*(MOUNT + path for _, path in PATHS), *ADMINISTRATION])
def test_any_headers_and_queries(lab: Lab, path: str) -> None:
    """Whatever the headers say that we read, twice or in no encoding, and whatever stands behind the question mark."""
    names = [name.encode() for name in (*HEADERS, "x-ludus-agent", "anthropic-version")]

    @FUZZ
    @example(headers=[(b"x-stainless-retry-count", "²".encode("latin-1"))], query=b"")
    @example(headers=[(b"x-stainless-retry-count", b"9" * 5000)], query=b"")
    @given(headers=st.lists(st.tuples(st.sampled_from(names), FOREIGN), max_size=4), query=FOREIGN)
    def fuzz(headers: list[tuple[bytes, bytes]], query: bytes) -> None:
        body = next((bodies[0] for name, bodies in BODIES.items() if (name, path.removeprefix(MOUNT)) in PATHS), {})
        body = {**body, "stream": False} if body and "count" not in path and "input_tokens" not in path else body
        own = [(b"authorization", b"Bearer fuzz")]
        status, answer = lab.ask(path, json.dumps(body).encode(), headers=[*headers, *own], query_string=query)
        assert status < 500 or SCRIPT_FAULT in answer, (path, headers, query, answer)

    fuzz()


@pytest.mark.parametrize("name", ["temperature", "seed", "top_k", "max_tokens", "repetition_penalty", "logit_bias"])
@pytest.mark.parametrize("digits", [20, 401, 4000, 5000])
def test_numbers_of_any_length(lab: Lab, name: str, digits: int) -> None:
    """No number of a body is too long to be told so."""
    number = "1" * digits
    value = f'{{"5": {number}}}' if name == "logit_bias" else number
    raw = f'{{"messages": [{{"role": "user", "content": "Guess."}}], "{name}": {value}}}'
    check(lab, f"{MOUNT}/chat/completions", raw.encode())


@pytest.mark.parametrize("path", ADMINISTRATION)
def test_changed_bodies_of_the_administration(lab: Lab, path: str) -> None:
    """The same for opening, rewarding and ending sessions, by the admin and by a session's own key."""

    @FUZZ
    @given(changes=CHANGES, key=st.sampled_from([ADMIN_KEY, "fuzz", "nobody"]))
    def fuzz(changes: list[tuple[int, str, Any]], key: str) -> None:
        check(lab, path, changed(ADMINISTRATION[path], changes), key)

    fuzz()


@pytest.mark.parametrize("path", [f"{MOUNT}/chat/completions", f"{MOUNT}/messages", "/sessions"])
def test_bytes_that_are_no_json(lab: Lab, path: str) -> None:
    """Any bytes, cut and nested JSON."""

    @FUZZ
    @example(raw=b"[" * 100_000)
    @example(raw=b'{"messages":' * 190 + b"1" + b"}" * 190)
    @example(raw=b'{"messages":[{"role":"user","content":' + b"[" * 190 + b"]" * 190 + b"}]}")
    @given(raw=st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
    def fuzz(raw: bytes) -> None:
        check(lab, path, raw, ADMIN_KEY)

    fuzz()


def test_what_the_openapi_document_allows(lab: Lab) -> None:
    """Requests that schemathesis makes of the gateway's own document, to every route of it."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", lab.app)
    operations = [result.ok() for result in schema.get_all_operations()]
    assert {operation.path for operation in operations} == {
        route.path.replace("{name:path}", "{name}") for route in lab.app.routes if route.path != "/openapi.json"
    }
    for operation in operations:

        @settings(FUZZ, max_examples=max(1, settings.default.max_examples // 10))
        @given(case=operation.as_strategy())
        def fuzz(case: schemathesis.Case) -> None:
            answer = case.call(headers={"x-api-key": ADMIN_KEY})
            assert answer.status_code < 500, (case.method, case.path, answer.text)

        fuzz()
