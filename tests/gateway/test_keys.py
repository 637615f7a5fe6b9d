"""Which session a request names, and which requests are one request sent twice."""

import pytest

from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.handle import Handle
from ludus.episodes.keys import SessionKeys
from ludus.episodes.recorder import Recorder
from ludus.episodes.session import Session
from ludus.episodes.spec import SessionSpec
from ludus.errors import AgentError
from ludus.gateway.clients import Attempts
from ludus.http.keys import digest, is_key
from ludus.text.chat import ChatText

FIRST = {"x-stainless-retry-count": "0"}
AGAIN = {"x-stainless-retry-count": "1"}


@pytest.fixture
def session(text: ChatText) -> Session:
    return Recorder(ScriptedEngine([], text.tokenizer), text).open(SessionSpec("s1"))


def refused(sessions: SessionKeys, path_secret: str | None, headers: dict[str, str]) -> tuple[int, str]:
    with pytest.raises(AgentError) as caught:
        sessions.find(path_secret, headers)
    return caught.value.status, caught.value.code


def test_secrets_are_long_and_new(session: Session) -> None:
    """A secret has more than 128 bits, and no two are alike."""
    sessions = SessionKeys()
    made = {sessions.add(session) for _ in range(20)}
    assert len(made) == len(sessions) == 20
    assert all(len(secret) * 6 >= 128 for secret in made)


def test_path_or_key_names_the_session(session: Session) -> None:
    """The URL's secret, a bearer token and x-api-key each lead to the session; with the URL any key does."""
    sessions = SessionKeys()
    secret = sessions.add(session)
    for path_secret, headers in [
        (secret, {}),
        (secret, {"authorization": "Bearer DUMMY"}),
        (secret, {"authorization": f"Bearer {secret}", "x-api-key": "sk-other"}),
        (None, {"authorization": f"bearer {secret}"}),
        (None, {"x-api-key": secret}),
        (None, {"authorization": "Basic abc", "x-api-key": secret}),
    ]:
        assert sessions.find(path_secret, headers).session is session


def test_url_and_key_of_different_sessions_are_refused(session: Session) -> None:
    """A URL with the key of another session, or two keys of two sessions, is 403."""
    sessions = SessionKeys()
    one, other = sessions.add(session), sessions.add(session)
    assert refused(sessions, one, {"authorization": f"Bearer {other}"}) == (403, "session_mismatch")
    assert refused(sessions, None, {"authorization": f"Bearer {one}", "x-api-key": other})[0] == 403


def test_unknown_names_are_refused(session: Session) -> None:
    """An unknown URL, an unknown key and no key are 401, and the key is not shown in full."""
    sessions = SessionKeys()
    secret = sessions.add(session)
    sessions.remove(secret)
    sessions.remove(secret)
    assert refused(sessions, secret, {}) == (401, "invalid_session")
    assert refused(sessions, None, {}) == (401, "invalid_api_key")
    with pytest.raises(AgentError) as caught:
        sessions.find(None, {"authorization": "Bearer sk-verysecretkey"})
    assert caught.value.status == 401
    assert "verysecret" not in caught.value.message


def test_the_time_a_look_up_takes_tells_nothing(session: Session) -> None:
    """Keys are looked up and kept by digest alone; no key stands in the sessions' memory."""
    sessions = SessionKeys()
    secret = sessions.add(session)
    assert secret not in repr(vars(sessions))
    assert is_key(secret, digest(secret)) and not is_key(secret[:-1], digest(secret))


def test_open_mode_gives_a_session_to_an_unknown_key(session: Session) -> None:
    """Where it is allowed, a key that names none is given a session; one that names one is not, nor is a URL."""
    sessions = SessionKeys()
    given, made = sessions.add(session), []

    def open_mode(key: str) -> Handle:
        made.append(key)
        return Handle(session)

    assert sessions.find(None, {"x-api-key": given}, open_mode=open_mode).session is session
    for headers in ({"authorization": "Bearer me"}, {"x-api-key": "me"}, {}):
        sessions.find(None, headers, open_mode=open_mode)
    assert made == ["me", "me", ""]
    with pytest.raises(AgentError):
        sessions.find("nobody", {"x-api-key": "me"}, open_mode=open_mode)


def test_equal_requests_are_two_samples() -> None:
    """Two equal requests that do not say they are retries have different retry keys."""
    attempts = Attempts()
    assert attempts.begin(FIRST, b"{}") != attempts.begin(FIRST, b"{}")


def test_requests_without_retry_header_have_no_key() -> None:
    """A client that never says it retries gets no retry key; what is no count is refused."""
    assert Attempts().begin({}, b"{}") is None
    for count in ("x", "", "-1", "²", "9" * 5000):
        with pytest.raises(AgentError, match="x-stainless-retry-count"):
            Attempts().begin({"x-stainless-retry-count": count}, b"{}")


def test_retry_takes_over_the_request_whose_answer_was_lost() -> None:
    """Of several equal requests, a retry is the one whose answer did not arrive, not the one that did."""
    attempts = Attempts()
    delivered, lost = attempts.begin(FIRST, b"{}"), attempts.begin(FIRST, b"{}")
    attempts.end(delivered, delivered=True)
    attempts.end(lost, delivered=False)
    assert attempts.begin(AGAIN, b"{}") == lost


def test_retry_joins_the_request_that_still_runs() -> None:
    """A retry that arrives while the first try still runs has its key; later it has that of the newest delivered."""
    attempts = Attempts()
    delivered = attempts.begin(FIRST, b"{}")
    running = attempts.begin(FIRST, b"{}")
    attempts.end(delivered, delivered=True)
    assert attempts.begin(AGAIN, b"{}") == running
    attempts.end(running, delivered=True)
    assert attempts.begin(AGAIN, b"{}") == running


def test_retry_of_an_unknown_request_is_a_new_one() -> None:
    """A retry with a body never seen before gets a key of its own."""
    attempts = Attempts()
    assert attempts.begin(AGAIN, b"{}") == attempts.begin(AGAIN, b"{}")
    assert attempts.begin(AGAIN, b"{}") != attempts.begin(AGAIN, b'{"a": 1}')


def test_idempotency_key_names_the_request() -> None:
    """An idempotency key is the retry key, whatever the body; the recorder compares bodies."""
    attempts = Attempts()
    headers = {"idempotency-key": "k", **FIRST}
    assert attempts.begin(headers, b"{}") == attempts.begin(headers, b"[]")
