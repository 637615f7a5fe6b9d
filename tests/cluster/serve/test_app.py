"""The server over HTTP: who may do what, how errors are sent, how events come."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest

from tests.cluster.serve.scripted import KEY, Served

AUTHORIZED = {"authorization": f"Bearer {KEY}"}
MODEL = {"project": "mail", "name": "agent-001", "base_model": "smollm2-135m"}
PATH = "/api/v1/models/mail/agent-001"


@pytest.fixture
def http(served: Served) -> Any:
    with httpx.Client(base_url=served.url, headers=AUTHORIZED, timeout=10) as client:
        client.post("/api/v1/models", json=MODEL).raise_for_status()
        yield client


def submit(http: httpx.Client, key: str | None = None, **arguments: Any) -> httpx.Response:
    headers = {} if key is None else {"idempotency-key": key}
    return http.post(f"{PATH}/jobs", json={"kind": "train", "arguments": arguments}, headers=headers)


def read_events(http: httpx.Client, job_id: str, after: int = 0) -> list[dict[str, Any]]:
    with http.stream("GET", f"/api/v1/jobs/{job_id}/events", headers={"last-event-id": str(after)}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = list(answer.iter_lines())
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert [f"id: {event['number']}" for event in events] == [line for line in lines if line.startswith("id: ")]
    assert [f"event: {event['kind']}" for event in events] == [line for line in lines if line.startswith("event: ")]
    return events


def code_of(answer: httpx.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    assert set(error) == {"type", "message", "code", "param"}
    return answer.status_code, error["type"], error["code"]


@pytest.mark.parametrize("path", ["/", "/health", "/healthz", "/api"])
def test_probes_and_the_handshake_need_no_key(served: Served, path: str) -> None:
    """Anybody may see that a server is there, and which versions it speaks."""
    assert httpx.get(served.url + path).status_code == 200
    assert httpx.get(f"{served.url}/api").json()["versions"] == ["v1"]


@pytest.mark.parametrize("key", [None, "wrong", KEY + "x", KEY[:-1]])
def test_everything_else_needs_the_key(served: Served, key: str | None) -> None:
    """Without it every route says 401 in the same words, models and jobs that do not exist included."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    for method, path in [
        ("GET", "/api/v1/models"),
        ("GET", "/api/v1/openapi.json"),
        ("POST", "/api/v1/models"),
        ("GET", PATH),
        ("POST", f"{PATH}/jobs"),
        ("GET", "/api/v1/jobs/job-1"),
        ("GET", "/api/v1/jobs/job-1/events"),
        ("POST", "/m/mail/agent-001/v1/chat/completions"),
        ("GET", "/m/mail/agent-001/v1/models"),
    ]:
        answer = httpx.request(method, served.url + path, headers=headers)
        assert code_of(answer) == (401, "request_error", "invalid_api_key"), path
        assert KEY not in answer.text


def test_the_routes_are_described(http: httpx.Client) -> None:
    """By an OpenAPI document, with the bodies and the keys that they want."""
    document = http.get("/api/v1/openapi.json").json()
    path = "/api/v1/models/{project}/{name}/jobs"
    assert set(document["paths"][path]) == {"get", "post"} and "SubmitJob" in document["components"]["schemas"]
    assert all("security" in route and "422" not in route["responses"] for route in document["paths"][path].values())


def test_a_job_is_submitted_followed_and_read(http: httpx.Client, served: Served) -> None:
    """202 for a new job, 200 for the same again; its events end with its result."""
    served.job_runner.num_reports = 2
    answer = submit(http, "key-1", name="a")
    assert answer.status_code == 202
    job_id = answer.json()["id"]
    events = read_events(http, job_id)
    assert [event["kind"] for event in events] == ["queued", "started", "progress", "progress", "succeeded"]
    assert [event["number"] for event in events] == [1, 2, 3, 4, 5]
    assert read_events(http, job_id, after=3) == events[3:]
    assert read_events(http, job_id, after=5) == []
    view = http.get(f"/api/v1/jobs/{job_id}").json()
    assert view["result"] == events[-1]["data"] == {"step": 1, "metrics": {"loss": 0.5}}
    again = submit(http, "key-1", name="a")
    assert (again.status_code, again.json()) == (200, view)
    assert code_of(submit(http, "key-1", name="b")) == (409, "request_error", "idempotency_conflict")
    assert http.get(PATH).json()["step"] == 1
    assert [job["id"] for job in http.get(f"{PATH}/jobs").json()["jobs"]] == [job_id]


def test_events_come_while_the_job_runs(http: httpx.Client, served: Served) -> None:
    """The first events are read before the job may end; meanwhile comments keep the connection awake."""
    served.job_runner.gate.clear()
    job_id = submit(http).json()["id"]
    with http.stream("GET", f"/api/v1/jobs/{job_id}/events") as answer:
        lines = answer.iter_lines()
        while next(lines) != "event: started":
            pass
        while next(lines) != ": keep-alive":
            pass
        served.job_runner.gate.set()
        assert "event: succeeded" in list(lines)


def test_a_queued_job_is_cancelled(http: httpx.Client, served: Served) -> None:
    """Who follows it is notified; what runs goes on."""
    served.job_runner.gate.clear()
    running, queued = (submit(http, name=name).json()["id"] for name in "ab")
    told: list[Any] = []
    follower = threading.Thread(target=lambda: told.extend(read_events(http, queued)))
    follower.start()
    assert http.post(f"/api/v1/jobs/{queued}/cancel").json()["state"] == "cancelled"
    follower.join(timeout=10)
    assert told[-1]["kind"] == "cancelled"
    served.job_runner.gate.set()
    assert read_events(http, running)[-1]["kind"] == "succeeded"
    assert code_of(http.post(f"/api/v1/jobs/{running}/cancel")) == (409, "request_error", "job_begun")
    assert served.job_runner.done == ["a"]


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/api/v1/jobs/job-x", None, (404, "request_error", "job_not_found")),
        ("GET", "/api/v1/jobs/job-x/events", None, (404, "request_error", "job_not_found")),
        ("GET", "/api/v1/models/mail/other", None, (404, "request_error", "model_not_found")),
        ("POST", "/m/mail/other/v1/chat/completions", {}, (404, "request_error", "model_not_found")),
        ("GET", "/api/v2/models", None, (404, "request_error", "unknown_url")),
        ("DELETE", "/api/v1/models", None, (405, "request_error", "method_not_supported")),
        ("POST", f"{PATH}/jobs", {"kind": "paint"}, (400, "request_error", "invalid_value")),
        ("POST", f"{PATH}/jobs", {"kinds": "train"}, (400, "request_error", "unknown_parameter")),
        ("POST", f"{PATH}/jobs", {}, (400, "request_error", "missing_required_parameter")),
        ("POST", "/api/v1/models", {**MODEL, "name": "a/b"}, (400, "request_error", "invalid_value")),
        ("POST", "/api/v1/models", {**MODEL, "base_model": "x"}, (409, "request_error", "model_exists")),
    ],
)
def test_what_cannot_be_is_a_typed_error(
    http: httpx.Client, method: str, path: str, body: Any, expected: tuple[int, str, str]
) -> None:
    """Status, type, code; nothing changes."""
    assert code_of(http.request(method, path, json=body)) == expected


def test_a_model_answers_below_its_own_path(http: httpx.Client) -> None:
    """What is asked there reaches its gateway, with the rest of the path."""
    answer = http.post("/m/mail/agent-001/v1/chat/completions", json={})
    assert answer.json()["model"] == "agent-001"
    assert answer.json()["path"].endswith("/v1/chat/completions")


def test_a_session_is_named_by_a_header_or_behind_the_key(http: httpx.Client) -> None:
    """A client that can be given a key alone names its session there; what stands before it must be the key."""
    path, name = "/m/mail/agent-001/v1/models", "c:g/a"
    both = {"authorization": f"Bearer {KEY}#{name}"}
    for headers, session in (({}, "shared"), ({"x-ludus-session": name}, name), (both, name)):
        assert http.get(path, headers=headers).json()["session"] == session
    assert httpx.get(f"{http.base_url}{path}", headers={"x-api-key": f"{KEY}#{name}"}).json()["session"] == name
    for wrong in (f"{name}#{KEY}", f"#{KEY}", f"{KEY[:-1]}#{name}"):
        assert http.get(path, headers={"authorization": f"Bearer {wrong}"}).status_code == 401


@pytest.mark.parametrize("path", ["/api/v1/models", f"{PATH}/checkpoints", f"{PATH}/sessions/end", f"{PATH}/jobs"])
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"a": 1}', b"[" * 10_000, b'{"steps": [-1]}', b"\xff\xfe", b'{"kind": 1}']
)
def test_whatever_is_sent_is_refused_by_name(http: httpx.Client, path: str, body: bytes) -> None:
    """400 with a code; the server goes on."""
    answer = http.post(path, content=body)
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "request_error", answer.text
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize("key", ["a b", "", "k" * 201])
def test_an_idempotency_key_is_a_word(http: httpx.Client, key: str) -> None:
    """Others are refused, so that no proxy changes them on the way."""
    assert code_of(submit(http, key))[2] == "invalid_value"


def test_a_job_that_is_too_large_is_refused(http: httpx.Client) -> None:
    """413, and the limit; other requests have a smaller one."""
    answer = http.post("/api/v1/models", content=b" " * (2**20 + 1))
    assert code_of(answer) == (413, "request_error", "request_too_large")
