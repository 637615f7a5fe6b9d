"""Bearer keys: how they are made, what is kept of them, where a request carries them.

Knows: secrets, digests, header values.  Knows not: whose key it is, or what it opens.
Invariant: only the digest of a key is kept, and digests are what is compared: who measures how long an answer takes
learns nothing about any key.
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
"""In an OpenAPI document: where `keys_of` looks."""
SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def new_key() -> str:
    """A key that nobody has and nobody guesses."""
    return secrets.token_urlsafe(SECRET_BYTES)


def check_key(what: str, host: str, key: str | None, *, variable: str) -> None:
    """Raises UserError where strangers could use `what`, or guess its key.

    key: the one that its user gave. None: one will be made, and shown at this machine.
    variable: of the environment, that the key may be given in.
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
    """Only this machine reaches a server on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def digest(key: str) -> bytes:
    """What is kept of a key and compared."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def is_key(key: str, expected: bytes) -> bool:
    """Whether this is the key of which `expected` is the digest; the time it takes does not depend on it."""
    return hmac.compare_digest(digest(key), expected)


def keys_of(headers: Mapping[str, str]) -> list[str]:
    """Keys in a request's headers, the bearer token first."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    keys = [token.strip()] if scheme.lower() == "bearer" else []
    if "x-api-key" in headers:
        keys.append(headers["x-api-key"])
    return [key for key in keys if key]
