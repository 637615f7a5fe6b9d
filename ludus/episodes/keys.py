"""Finds the session of a request: by a secret in the URL path, or a key in the headers.

Knows: secrets, sessions by name.  Knows not: HTTP beyond header values, what sessions do.
Rules: a path names the session, and any key is then accepted unless it names another session (403). Without a path the
bearer token or `x-api-key` names it. An unknown name is 401, or opens a new session where that is allowed; there each
request without a key is a session by itself. Only the digest of a key is kept and looked up, so that response times
tell nothing about any key.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from ludus.episodes.handle import Handle
from ludus.episodes.session import Session
from ludus.errors import AgentError
from ludus.http.keys import digest, keys_of, new_key

Clock = Callable[[], float]
OpenMode = Callable[[str], Handle]
"""Opens a session for a key that names none; '' for a request without a key."""


class SessionKeys:
    """All sessions that can be reached, by key. Safe to use from any thread."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._handles: dict[bytes, Handle] = {}
        """By the digest of the key."""

    def __len__(self) -> int:
        return len(self._handles)

    def __repr__(self) -> str:
        return f"SessionKeys(num_sessions={len(self)})"

    def add(self, session: Session) -> str:
        """A new secret for a session, valid until `remove`. The caller ends the session itself."""
        secret = new_key()
        self.bind(secret, Handle(session))
        return secret

    def bind(self, key: str, handle: Handle) -> None:
        """Let the key name this session."""
        handle.key, handle.used_at = digest(key), self.clock()
        with self._lock:
            self._handles[handle.key] = handle

    def remove(self, secret: str) -> None:
        """Forget the secret. Removing it twice is allowed."""
        with self._lock:
            self._handles.pop(digest(secret), None)

    def release(self, handle: Handle) -> None:
        """Forget the session's key, unless it names another session already."""
        with self._lock:
            if self._handles.get(handle.key) is handle:
                del self._handles[handle.key]

    def get(self, key: str) -> Handle | None:
        """The session with this key. None: there is none."""
        with self._lock:
            return self._handles.get(digest(key))

    def find(self, path_secret: str | None, headers: Mapping[str, str], *, open_mode: OpenMode | None = None) -> Handle:
        """The session that a request names; it counts as used now. Raises AgentError 401 or 403.

        open_mode: opens a session for a key that names none, or a full one. None: such a key is refused.
        """
        keys = keys_of(headers)
        by_path = None if path_secret is None else self.get(path_secret)
        if path_secret is not None and by_path is None:
            raise AgentError("No session has this URL; it may have ended.", status=401, code="invalid_session")
        found = [by_path, *(self.get(key) for key in keys)]
        named = [handle for handle in found if handle is not None]
        if any(handle is not named[0] for handle in named):
            raise AgentError(
                "URL and key name different sessions; use the key given with this URL.",
                status=403,
                code="session_mismatch",
            )
        if open_mode is not None and path_secret is None and (not named or named[0].is_full):
            named = [open_mode(keys[0] if keys else "")]
        if not named:
            raise unknown_key(keys[0] if keys else "")
        named[0].used_at = self.clock()
        return named[0]


def unknown_key(key: str) -> AgentError:
    # The key may be a real one for another service: show only enough for its owner to recognise it.
    shown = f"{key[:3]}***" if len(key) > 8 else "***"
    message = f"Incorrect API key provided: {shown}; no session has it, or the session has ended."
    if not key:
        message = "No API key was given; send the session's key as a bearer token, or use the session's URL."
    return AgentError(message, status=401, code="invalid_api_key")
