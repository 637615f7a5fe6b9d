"""Where the ranks of a trainer listen for each other."""

from __future__ import annotations

import os

import pytest
import torch

from ludus.trainer.group import TorchRanks, on_interface, open_rendezvous

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is set, before or after."""
    for name in (GLOO, NCCL):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_ranks_that_meet_on_the_loopback_listen_there_alone(host: str) -> None:
    """By whichever name they meet; gloo while the group is made, NCCL also later, when it connects."""
    _, store = open_rendezvous(host)
    with on_interface(store, torch.device("cpu")):
        assert os.environ[GLOO] in ("lo", "lo0") and NCCL not in os.environ
    assert GLOO not in os.environ
    with on_interface(store, torch.device("cuda", 0)):
        assert os.environ[NCCL] == os.environ[GLOO]
    assert GLOO not in os.environ and os.environ[NCCL] in ("lo", "lo0")


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the route is."""
    monkeypatch.setenv(GLOO, "ib0")
    monkeypatch.setenv(NCCL, "ib1")
    _, store = open_rendezvous("127.0.0.1")
    with on_interface(store, torch.device("cuda", 0)):
        assert (os.environ[GLOO], os.environ[NCCL]) == ("ib0", "ib1")
    assert (os.environ[GLOO], os.environ[NCCL]) == ("ib0", "ib1")


def test_what_waits_on_cards_is_broken_off() -> None:
    """Once, and nothing is waited for afterwards; gloo notices a lost rank by itself. This process may meet others
    again."""
    _, store = open_rendezvous("127.0.0.1")
    ranks = TorchRanks(0, 1, torch.device("cpu"), store)
    ranks.abort()
    assert not ranks.is_aborted and torch.distributed.is_initialized()
    ranks.device = torch.device("cuda", 0)
    for _ in range(2):
        ranks.abort()
    assert ranks.is_aborted and not torch.distributed.is_initialized()
    ranks.close(is_broken=True)
    _, store = open_rendezvous("127.0.0.1")
    again = TorchRanks(0, 1, torch.device("cpu"), store)
    again.close()
    again.device = torch.device("cuda", 0)
    again.abort()  # the others have ended, as they were told to
    assert not again.is_aborted
