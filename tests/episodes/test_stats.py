from __future__ import annotations

from ludus.episodes.stats import ForkExample, ForkLog


def test_one_example_is_kept_for_each_reason() -> None:
    """Forks are counted by reason; the example is the first of its reason, and only that one is made."""
    log = ForkLog()
    made: list[str] = []

    def example(turn_id: str) -> ForkExample:
        made.append(turn_id)
        return ForkExample.around(turn_id=turn_id, follows="t0", seen="abc", rendered="abd")

    for turn_id in ("t1", "t2"):
        log.add("edit", lambda turn_id=turn_id: example(turn_id))
    log.add("template", lambda: example("t3"))
    assert log.counts == {"edit": 2, "template": 1}
    assert {reason: kept.turn_id for reason, kept in log.examples.items()} == {"edit": "t1", "template": "t3"}
    assert made == ["t1", "t3"]


def test_example_shows_the_first_difference() -> None:
    """Long texts are cut to the surroundings of the place where they part."""
    kept = ForkExample.around(turn_id="t", follows="s", seen="x" * 500 + "old" + "y" * 500, rendered="x" * 500 + "new")
    assert kept.seen.startswith("x" * 80 + "old")
    assert kept.rendered == "x" * 80 + "new"
