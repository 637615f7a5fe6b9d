"""The list of attacks in docs/promises.md is the one that `make attack` goes through."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.names import LISTS

PAGE_OF_PROMISES = Path(__file__).parents[2] / "docs" / "promises.md"


def test_the_page_has_every_attack_by_its_name() -> None:
    """And says how many there are; none has the name of another of its kind."""
    number = sum(len(each.names) for each in LISTS)
    assert number >= 120 and all(len({*each.names}) == len(each.names) for each in LISTS)
    page = PAGE_OF_PROMISES.read_text(encoding="utf-8")
    wanted = [f"{number} attacks", *map(str, LISTS)]
    missing = [line for line in wanted if line not in page]
    assert not missing, "\n".join(wanted)
