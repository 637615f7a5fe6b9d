"""Bearer keys: how they are made, how they are stored, where a request carries them.

Knows: secrets, digests, header values.  Knows not: whose key it is, or what it opens.
Invariant: only the digest of a key is stored, and only digests are compared, so that response times reveal nothing
about any key.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Mapping

from ludus.errors import UserError

SECRET_BYTES = 24  # 192 bits: more than the 128 that make guessing hopeless, and 32 characters without padding
MIN_KEY_CHARS = 16  # 96 bits, if it is random

SECURITY: list[dict[str, list[str]]] = [{"bearer": []}, {"key": []}]
"""For OpenAPI documents: the places in which `keys_of` looks."""
SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def new_key() -> str:
    """A new random key."""
    return secrets.token_urlsafe(SECRET_BYTES)


def check_key(what: str, host: str, key: str | None, *, variable: str) -> None:
    """Raises UserError if others on the network could use `what`, or guess its key.

    key: the key that the user gave. None: one will be made, and shown on this machine.
    variable: the environment variable that may hold the key.
    """
    if key is None and not is_loopback(host):
        raise UserError(
            f"{what} on {host} lets other machines in, and then the key must be yours: set {variable}, or listen on "
            "127.0.0.1"
        )
    if key is not None and len(key) < MIN_KEY_CHARS:
        raise UserError(
            f"the key in {variable} has {len(key)} characters; {MIN_KEY_CHARS} or more are hard to guess, as those of "
            "`openssl rand -hex 24`"
        )


def is_loopback(host: str) -> bool:
    """Whether a server on `host` can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def digest(key: str) -> bytes:
    """The digest of a key, which is stored and compared in its place."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def is_key(key: str, expected: bytes) -> bool:
    """Whether `key` has the digest `expected`; compared in constant time."""
    return hmac.compare_digest(digest(key), expected)


def keys_of(headers: Mapping[str, str]) -> list[str]:
    """The keys in a request's headers, the bearer token first."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    keys = [token.strip()] if scheme.lower() == "bearer" else []
    if "x-api-key" in headers:
        keys.append(headers["x-api-key"])
    return [key for key in keys if key]
