"""TLS for our servers and their clients: SSL contexts from certificate files.

Knows: PEM files, the ssl module.  Knows not: sockets, who serves what.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from ludus.errors import UserError


@dataclass(frozen=True, slots=True)
class Tls:
    """A server's identity: PEM files of its certificate chain and of the private key."""

    cert: Path
    key: Path

    @classmethod
    def of(cls, cert: Path | None, key: Path | None) -> Tls | None:
        """None if neither file is given: plain HTTP. Raises UserError for one without the other, or unusable files."""
        if cert is None and key is None:
            return None
        if cert is None or key is None:
            has, lacks = ("certificate", "private key") if key is None else ("private key", "certificate")
            raise UserError(f"a {has} was given for TLS, but no {lacks}; a server needs both, as PEM files")
        tls = cls(cert, key)
        tls.check()
        return tls

    def check(self) -> None:
        """Raises UserError if these files cannot be used to serve."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # A key that wants a password would ask for it on the terminal of a server.
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            raise UserError(
                f"cannot serve TLS with the certificate {str(self.cert)!r} and the key {str(self.key)!r}: {error}. "
                "Both are PEM files, the key is the certificate's, and it has no password"
            ) from error


def client_context(ca_file: Path | None) -> ssl.SSLContext:
    """A context that trusts the system's authorities and those in `ca_file`.

    ca_file: PEM certificates. None: the system's only (SSL_CERT_FILE and SSL_CERT_DIR are followed).
    Raises UserError if there are no certificates in it.
    """
    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:
            raise UserError(
                f"cannot read certificates from ca_file={str(ca_file)!r}: {error}; it is a PEM file of the authority "
                "that signed the server's certificate, or of that certificate itself"
            ) from error
    return context


def _no_password() -> str:
    raise ValueError("it wants a password")
