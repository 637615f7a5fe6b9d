"""Page tables that stay on a card: what is there after each step, and what was sent for it."""

from __future__ import annotations

import random

import pytest
import torch

from ludus.engines.local.kernels.tables import CardTables

CPU = torch.device("cpu")


@pytest.mark.parametrize("seed", range(20))
def test_tables_lie_there_whatever_becomes_of_them(seed: int) -> None:
    """Sequences grow, have pages exchanged, end, begin anew and rest for some steps; more come than there are rows."""
    rng = random.Random(seed)
    tables, running = CardTables(4, 12, CPU), [[rng.randrange(99)] for _ in range(6)]
    for _ in range(200):
        number = rng.randrange(len(running))
        match rng.randrange(5):
            case 0:
                running[number] = [rng.randrange(99) for _ in range(rng.randint(1, 12))]
            case 1:
                table = running[number]
                table[rng.randrange(len(table))] = rng.randrange(99)
            case 2:
                del running[number][1:]
            case _:
                running[number] += [rng.randrange(99)] * (len(running[number]) < 12)
        step = rng.sample(running, rng.randint(1, 4))
        for table, start in zip(step, tables.place(step), strict=True):
            assert tables.page_ids[start : start + len(table)].tolist() == table
            assert start % 12 == 0


def test_new_pages_alone_are_sent() -> None:
    """A step in which no table changed sends nothing; a page more is one number."""
    tables, running = CardTables(3, 8, CPU), [[5, 6, 7], [1], [2, 3]]
    starts = tables.place(running)
    tables.page_ids.fill_(-1)
    assert tables.place(running[:2]) == starts[:2] and set(tables.page_ids.tolist()) == {-1}
    running[0].append(9)
    assert tables.place(running) == starts
    assert tables.page_ids[starts[0] + 3] == 9 and tables.page_ids.eq(-1).sum() == 3 * 8 - 1


def test_what_could_not_be_sent_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card without memory fails the step; nothing is taken for being there that is not."""
    tables, running = CardTables(2, 4, CPU), [[1], [2]]
    tables.place(running)
    running[0] += [3, 4]

    def refuse(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
        patch.setattr(torch, "tensor", refuse)
        tables.place(running)
    (start, _) = tables.place(running)
    assert tables.page_ids[start : start + 3].tolist() == [1, 3, 4]
