"""The ledger balances, adds up, and says by how much when it does not."""

import pytest

from ludus.episodes.ledger import MASK_REASONS, Ledger
from ludus.errors import InternalError


def test_balanced():
    """Trained and masked tokens together are the sampled ones."""
    ledger = Ledger(sampled=10, trained=7, masked={"stale": 2, "greedy": 1})
    ledger.check()
    assert ledger.unbalanced == 0
    assert ledger.num_masked == 3


@pytest.mark.parametrize(("trained", "off_by"), [(6, 1), (9, -2)])
def test_unbalanced(trained, off_by):
    """A token without an account, or with two, is an error that carries the numbers."""
    ledger = Ledger(sampled=10, trained=trained, masked={"stale": 3})
    assert ledger.unbalanced == off_by
    with pytest.raises(InternalError, match=f"sampled 10 != trained {trained} .*'stale': 3.* off by {off_by}"):
        ledger.check()


def test_addition():
    """Ledgers add reason by reason, and zero changes nothing."""
    one = Ledger(5, 3, {"stale": 2})
    two = Ledger.all_masked(4, "stale") + Ledger.all_masked(1, "timeout")
    assert one + two == Ledger(10, 3, {"stale": 6, "timeout": 1})
    assert Ledger.sum([one, two, Ledger()]) == one + two
    assert one == Ledger(5, 3, {"stale": 2})


def test_all_masked():
    """Tokens that stay out together are one entry; no tokens are none."""
    assert Ledger.all_masked(3, "failed") == Ledger(3, 0, {"failed": 3})
    assert Ledger.all_masked(0, "failed") == Ledger()


def test_reasons():
    """Each reason has its own name."""
    assert len(set(MASK_REASONS)) == len(MASK_REASONS)


def test_what_stands_beside_the_law_adds_up_and_is_said():
    """Tokens that were replayed, or given by experts, change no balance; a ledger without any says nothing of them."""
    ledger = Ledger(2, 2) + Ledger(replayed=3) + Ledger(demonstrated=4, replayed=1)
    assert ledger == Ledger(2, 2, {}, replayed=4, demonstrated=4) and ledger.unbalanced == 0
    assert repr(ledger) == "Ledger(sampled=2, trained=2, masked={}, replayed=4, demonstrated=4)"
    assert repr(Ledger(2, 2)) == "Ledger(sampled=2, trained=2, masked={})"
