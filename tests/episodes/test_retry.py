from __future__ import annotations

import pytest

from ludus.episodes.retry import RetryCache
from ludus.errors import AgentError
from ludus.types import ChatRequest, Message


def request(content: str, key: str | None = "key") -> ChatRequest:
    return ChatRequest((Message("user", content),), retry_key=key)


def test_equal_request_finds_what_it_led_to() -> None:
    """The same key and body find the outcome; a request without a key never does."""
    book: RetryCache[str] = RetryCache()
    book.enter(request("a"), "first")
    book.enter(request("b", None), "second")
    assert book.find(request("a")) == "first"
    assert book.find(request("b", None)) is None
    assert book.find(request("a", "other")) is None


def test_another_body_is_a_mismatch() -> None:
    """A key with another body is refused, whatever became of the first."""
    book: RetryCache[str] = RetryCache()
    book.enter(request("a"), "first")
    with pytest.raises(AgentError, match="another body"):
        book.find(request("b"))


def test_an_outcome_takes_the_place_of_another_or_is_forgotten() -> None:
    """First the completion, then its turns; of one that was broken off nothing is known any more."""
    book: RetryCache[str] = RetryCache()
    for sent, led_to in ((request("a"), "turns"), (request("b", "other"), None), (request("c", None), "turns")):
        book.enter(sent, "completion")
        book.replace(sent, led_to)
    assert book.find(request("a")) == "turns"
    assert book.find(request("other body", "other")) is None
