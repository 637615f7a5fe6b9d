from ludus.models.blocks import cut_blocks


def test_blocks_cover_the_row_once_and_leave_strangers_out() -> None:
    """Blocks partition the queries, and independent sequences long enough for a block share none of their keys."""
    parents = [*range(-1, 127), -1, *range(128, 255)]
    blocks = cut_blocks(parents)
    assert [(block.start, block.end, block.keys) for block in blocks] == [
        (0, 128, ((0, 128),)),
        (128, 256, ((128, 256),)),
    ]
    # a trunk of 100 tokens, each with three leaves below it
    parents = [parent for trunk in range(100) for parent in (4 * (trunk - 1) if trunk else -1, *(4 * trunk,) * 3)]
    covered = [index for block in cut_blocks(parents) for index in range(block.start, block.end)]
    assert covered == list(range(400))
