"""What is said of certificates that nobody could be served with."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.errors import UserError
from ludus.http.tls import Tls, client_context
from tests.http.conftest import Authority


def test_both_files_or_none(authority: Authority) -> None:
    """None is plain HTTP; one alone is an error that names the other."""
    cert, key = authority.tls.cert, authority.tls.key
    assert Tls.of(None, None) is None
    assert Tls.of(cert, key) == authority.tls
    with pytest.raises(UserError, match="a certificate was given for TLS, but no private key"):
        Tls.of(cert, None)
    with pytest.raises(UserError, match="a private key was given for TLS, but no certificate"):
        Tls.of(None, key)


@pytest.mark.parametrize(
    ("cert", "key", "message"),
    [
        ("nowhere.pem", "key.pem", "No such file"),
        ("cert.pem", "locked.pem", "password"),
        ("ca.pem", "key.pem", "mismatch"),
        ("key.pem", "key.pem", "PEM files"),
    ],
)
def test_files_of_no_use(authority: Authority, cert: str, key: str, message: str) -> None:
    """Said before anything listens; nobody is asked for a password."""
    folder = authority.ca_file.parent
    with pytest.raises(UserError, match=message) as caught:
        Tls.of(folder / cert, folder / key)
    assert cert in str(caught.value) and key in str(caught.value)


def test_an_authority_that_is_none(authority: Authority, tmp_path: Path) -> None:
    """A file without certificates, and none at all."""
    (tmp_path / "empty.pem").write_text("nothing\n")
    for file in (tmp_path / "empty.pem", tmp_path / "nowhere.pem"):
        with pytest.raises(UserError, match=f"cannot read certificates from ca_file='{file}'"):
            client_context(file)
