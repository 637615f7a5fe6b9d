"""What rollouts are written with: tries, limits, batches of a data set."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from ludus.compat.art.concurrency import limit_concurrency
from ludus.compat.art.dataset import iterate_dataset
from ludus.compat.art.retrying import retry
from ludus.errors import UserError


def test_a_call_is_tried_again() -> None:
    """Both kinds of functions: until it works, told of each failure; the last error rises, others at once."""
    told: list[tuple[str, int]] = []
    tries: list[str] = []
    again = retry(
        max_attempts=3, delay=0, exceptions=(KeyError,), on_retry=lambda error, n: told.append((str(error), n))
    )

    @again
    async def late(kind: str) -> str:
        return act(kind)

    @again
    def act(kind: str) -> str:
        tries.append(kind)
        if kind == "wrong":
            raise TypeError(kind)
        if kind == "never" or len(tries) < 3:
            raise KeyError(kind)
        return kind

    assert act("third") == "third" and told == [("'third'", 1), ("'third'", 2)]
    tries.clear()
    with pytest.raises(KeyError):
        act("never")
    assert len(tries) == 3
    tries.clear()
    with pytest.raises(TypeError):
        asyncio.run(late("wrong"))
    assert tries == ["wrong"]
    with pytest.raises(UserError, match="max_attempts=0"):
        retry(max_attempts=0)


def test_pauses_grow() -> None:
    """A quarter of a second, then twice as long, unless told otherwise."""
    call: Any = retry(max_attempts=4)(lambda: None)
    states = [SimpleNamespace(attempt_number=attempt) for attempt in (1, 2, 3)]
    assert [call.retry.wait(state) for state in states] == [0.25, 0.5, 1.0]


@pytest.mark.parametrize(("derive_key", "most"), [(None, 2), (lambda number: number % 2, 4)])
def test_so_many_calls_at_once(derive_key: Any, most: int) -> None:
    """Of all calls, or of those with one key; in every event loop anew."""
    running: set[int] = set()
    seen: list[int] = []

    @limit_concurrency(2, derive_key)
    async def call(number: int) -> int:
        running.add(number)
        seen.append(len(running))
        await asyncio.sleep(0)
        running.discard(number)
        return number

    async def main() -> list[int]:
        return await asyncio.gather(*(call(number) for number in range(8)))

    for _ in range(2):
        assert asyncio.run(main()) == list(range(8))
    assert max(seen) == most


def test_a_dataset_in_batches() -> None:
    """Every epoch has each item once, in an order of its own; going on later gives the rest; nothing else moves."""
    random.seed(7)
    expected = random.Random(7).random()
    whole = list(iterate_dataset("abcde", groups_per_step=2, num_epochs=2))
    assert random.random() == expected
    assert [(each.step, each.epoch, each.epoch_step, len(each.items)) for each in whole] == [
        (0, 0, 0, 2), (1, 0, 1, 2), (2, 0, 2, 1), (3, 1, 0, 2), (4, 1, 1, 2), (5, 1, 2, 1),
    ]  # fmt: skip
    for items, epoch, step, epoch_step in whole:
        assert (len(items), step) == (1 if epoch_step == 2 else 2, 3 * epoch + epoch_step)
    for epoch in (0, 1):
        items = [item for each in whole if each.epoch == epoch for item in each.items]
        assert sorted(items) == list("abcde")
    assert list(iterate_dataset("abcde", groups_per_step=2, num_epochs=2, initial_step=4)) == whole[4:]
    assert list(iterate_dataset("ab", initial_step=9)) == []
    with pytest.raises(UserError, match="groups_per_step=0"):
        list(iterate_dataset("ab", groups_per_step=0))
