"""Serving over HTTP: an application on a thread of its own, and the bearer keys that guard it."""

from ludus.http.keys import digest, is_key, is_loopback, keys_of, new_key
from ludus.http.server import HttpServer, listen

__all__ = ["HttpServer", "digest", "is_key", "is_loopback", "keys_of", "listen", "new_key"]
