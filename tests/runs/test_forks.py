"""A reader of a run sees how often prompts forked, why, and where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from ludus.runs.store import RunStore
from ludus.runs.watch.run import WatchedRun
from ludus.text.prefix_memo import around_difference
from ludus.types import Episode


def decode(ids: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in ids)


def test_counts_and_one_example(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    """Counts are those of the metrics, the most frequent first; each reason has its first turn, cut where it parts."""
    played = make_episode(3, num_turns=2)
    first, second = played.session.turns
    forked = replace(second, fork="reasoning_stripped", follows=first.id, prefix=None)
    nodes = (*played.session.nodes[:2], replace(played.session.nodes[2], parent=None), played.session.nodes[3])
    played = replace(played, session=replace(played.session, nodes=nodes, turns=(first, forked)))
    with RunStore.create(tmp_path, "run", "") as run:
        run.add_episode(make_episode(4), step=0)
        run.add_episode(played, step=0)
        run.add_metrics(0, {"rollout/fork_edit_turns": 1.0, "rollout/fork_reasoning_stripped_turns": 2.0})
        run.add_metrics(1, {"rollout/fork_reasoning_stripped_turns": 3.0, "rollout/forked_share": 0.5})
        with closing(WatchedRun(run.folder, "run", decode=decode)) as watched:
            watched.wait(num_read=2)
            rows = watched.forks()["forks"]
            texts = [finding["text"] for finding in watched.health()["findings"] if finding["kind"] == "forked"]
    assert [(row["reason"], row["num_turns"]) for row in rows] == [("reasoning_stripped", 5), ("edit", 1)]
    example = rows[0]["example"]
    assert (example["session_id"], example["number"]) == (played.session.id, 2)
    assert decode(nodes[2].token_ids).startswith(example["shown"])
    assert decode(played.session.path_ids(first.node)).startswith(example["seen"])
    assert rows[1]["example"] is None
    assert texts[0] == "5 turns did not extend the tokens before them: reasoning stripped"


def test_example_shows_the_first_difference() -> None:
    """Long texts are cut to the surroundings of the place where they part."""
    seen, shown = around_difference("x" * 500 + "old" + "y" * 500, "x" * 500 + "new", 80)
    assert seen.startswith("x" * 80 + "old")
    assert shown == "x" * 80 + "new"
