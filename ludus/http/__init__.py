"""Serving over HTTP: an application on a thread of its own, the bearer keys that guard it, and TLS."""

from ludus.http.keys import check_key, digest, is_key, is_loopback, keys_of, new_key
from ludus.http.server import HttpServer, listen
from ludus.http.tls import Tls, client_context

__all__ = [
    "HttpServer",
    "Tls",
    "check_key",
    "client_context",
    "digest",
    "is_key",
    "is_loopback",
    "keys_of",
    "listen",
    "new_key",
]
