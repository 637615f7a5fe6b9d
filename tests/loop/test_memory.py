"""How much memory is held, of the machine and of a card that is a stand-in."""

from types import SimpleNamespace

from ludus.loop.measure import memory_metrics
from ludus.loop.memory import card_mb


def test_a_cards_memory_is_told_by_who_computes_on_one() -> None:
    """What torch keeps there and the most it ever kept; nothing where it computes on none."""
    cuda = {"memory_reserved": lambda: 3 * 2**20, "max_memory_reserved": lambda: 5 * 2**20}
    assert card_mb(SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True, **cuda))) == (3.0, 5.0)
    assert card_mb(SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False))) is None


def test_a_processor_has_no_card() -> None:
    """The metrics of a step have the process's memory alone."""
    assert set(memory_metrics()) == {"memory/rss_mb", "memory/peak_rss_mb"}
