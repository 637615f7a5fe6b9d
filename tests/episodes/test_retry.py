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


def test_only_the_present_outcome_is_replaced_or_forgotten() -> None:
    """A late end of an old attempt does not touch the attempt that took its place."""
    book: RetryCache[object] = RetryCache()
    old, new, end = object(), object(), object()
    book.enter(request("a"), old)
    book.replace(request("a"), old, None)
    book.enter(request("a"), new)
    book.replace(request("a"), old, end)
    book.replace(request("a"), old, None)
    assert book.find(request("a")) is new
    book.replace(request("a"), new, end)
    assert book.find(request("a")) is end
