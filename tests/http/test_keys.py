"""Keys where strangers are."""

from __future__ import annotations

import pytest

from ludus.errors import UserError
from ludus.http.keys import check_key, is_loopback


@pytest.mark.parametrize(
    ("host", "is_own"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "", "10.0.0.1", "example.org", "localhost.example.org")],
)
def test_only_loopback_addresses_are_this_machine_s_own(host: str, is_own: bool) -> None:
    """Names are not looked up: they may be another address tomorrow."""
    assert is_loopback(host) is is_own


def test_a_key_is_wanted_where_others_are() -> None:
    """And everywhere one that nobody guesses."""
    check_key("a server", "127.0.0.1", None, variable="ITS_KEY")
    check_key("a server", "0.0.0.0", "k" * 16, variable="ITS_KEY")
    with pytest.raises(UserError, match=r"a server on 0\.0\.0\.0 lets other machines in.*set ITS_KEY"):
        check_key("a server", "0.0.0.0", None, variable="ITS_KEY")
    with pytest.raises(UserError, match="the key in ITS_KEY has 15 characters; 16 or more"):
        check_key("a server", "127.0.0.1", "k" * 15, variable="ITS_KEY")
