"""What a run recorded as rows for other tools: both styles, both formats, one truth."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ludus.runs.export import write_jsonl, write_parquet
from ludus.runs.interactions import STYLES, Style, interactions
from ludus.types import Episode, Outcome


@pytest.mark.parametrize("style", STYLES)
def test_every_sampled_token_is_masked_in_once(
    full_episode: Episode, make_episode: Callable[..., Episode], style: Style
) -> None:
    """Token by token, the masked-in ids, logprobs and versions are those that were sampled, in both styles."""
    for episode in (full_episode, make_episode(4, num_turns=5)):
        rows = interactions(episode, style)
        columns = [
            column
            for row in rows
            for column in zip(row["loss_mask"], row["token_ids"], row["logprobs"], row["versions"], strict=True)
        ]
        sampled = [
            column
            for turn in episode.session.turns
            for column in zip(turn.sampled.token_ids, turn.sampled.logprobs, turn.sampled.versions, strict=True)
        ]
        assert sorted(column[1:] for column in columns if column[0]) == sorted(sampled)
        assert all(column[2:] == (0.0, -1) for column in columns if not column[0])
        named = [turn_id for row in rows for turn_id in row["completion_ids"]]
        assert sorted(named) == sorted(turn.id for turn in episode.session.turns)


def test_a_conversation_is_one_row_or_one_for_each_turn(make_episode: Callable[..., Episode]) -> None:
    """Five turns on one path: five rows, or one with five rewards."""
    episode = make_episode(4, num_turns=5)
    assert len(interactions(episode, "individual")) == 5
    (row,) = interactions(episode, "concat")
    assert row["rewards"] == [None, None, None, None, 1.0]
    assert len(row["messages"]) == len(episode.session.turns[-1].messages)


def test_both_formats_hold_the_same(
    tmp_path: Path, full_episode: Episode, make_episode: Callable[..., Episode]
) -> None:
    """A Parquet file read back is the JSON lines, with messages and tools as text."""
    failed = replace(make_episode(2), outcome=Outcome("failed", "no \ud83d"))
    rows = [row for episode in (full_episode, failed) for row in interactions(episode)]
    assert write_jsonl(rows, tmp_path / "rows.jsonl") == write_parquet(rows, tmp_path / "rows.parquet") == len(rows)
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    table = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    for line, row in zip(lines, table, strict=True):
        line["reason"] = line["reason"].replace("\ud83d", "?")  # half a character, which Parquet does not hold
        assert {**row, **{name: json.loads(row[name]) for name in ("messages", "reply", "tools")}} == line
