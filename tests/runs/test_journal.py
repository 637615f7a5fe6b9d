"""Turns outlive the process that recorded them, and cost nothing once their session has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from ludus.errors import BackendError
from ludus.runs.codec import SessionReader, SessionWriter
from ludus.runs.journal import Journal, discard, left_behind, read_unfinished
from ludus.runs.store import RunStore
from ludus.types import Episode, SessionRecord

MakeEpisode = Callable[..., Episode]


def new_nodes(record: SessionRecord, done: int, turn_idx: int) -> slice:
    """The nodes that a growing session has got with this turn."""
    return slice(done, record.turns[turn_idx].node + 1)


def write_all(journal: Journal, record: SessionRecord) -> None:
    done = 0
    for idx, turn in enumerate(record.turns):
        nodes = new_nodes(record, done, idx)
        journal.add_turn(record.id, record.nodes[nodes], turn)
        done = nodes.stop


def test_a_session_written_turn_by_turn_is_read_back_exactly(full_episode: Episode, make_episode: MakeEpisode) -> None:
    """Every node, message, tool and number comes back, whatever a record can hold."""
    for record in (full_episode.session, make_episode(3, num_turns=5).session):
        writer, reader, done = SessionWriter(), SessionReader(record.id), 0
        for idx, turn in enumerate(record.turns):
            last = idx + 1 == len(record.turns)
            nodes = slice(done, len(record.nodes)) if last else new_nodes(record, done, idx)
            reader.read(writer.write(record.nodes[nodes], turn))
            done = nodes.stop
        assert reader.record() == record


def test_a_turn_costs_what_is_new_in_it(tmp_path: Path, make_episode: MakeEpisode) -> None:
    """The entries of a long conversation's turns are as long as those of a short one's."""
    journal, record = Journal(tmp_path), make_episode(1, num_turns=60).session
    write_all(journal, replace(record, turns=record.turns[:1]))
    (path,) = (tmp_path / "journal").iterdir()
    sizes = [path.stat().st_size]
    for before, turn in pairwise(record.turns):
        journal.add_turn(record.id, record.nodes[before.node + 1 : turn.node + 1], turn)
        sizes.append(path.stat().st_size)
    lengths = [later - earlier for earlier, later in pairwise(sizes)]
    assert sum(lengths[50:]) < 1.3 * sum(lengths[5:15])


def test_nothing_stays_of_sessions_that_have_ended(tmp_path: Path, make_episode: MakeEpisode) -> None:
    """A segment goes when its last session ends, and the one in use is emptied; open sessions keep theirs."""
    journal = Journal(tmp_path, segment_bytes=2000)
    episodes = [make_episode(seed, num_turns=4) for seed in range(4)]
    for episode in episodes:
        write_all(journal, episode.session)
    assert len(list((tmp_path / "journal").iterdir())) > 2
    for episode in episodes[1:]:
        journal.end(episode.session.id)
    journal.close()
    (kept,) = read_unfinished(left_behind(tmp_path))
    assert kept.record == episodes[0].session
    again = Journal(tmp_path / "other")
    write_all(again, episodes[1].session)
    again.end(episodes[1].session.id)
    again.close()
    assert list((tmp_path / "other" / "journal").iterdir()) == []


def test_a_segment_in_use_is_nobody_elses(tmp_path: Path, make_episode: MakeEpisode) -> None:
    """What a living process writes is not left behind."""
    journal = Journal(tmp_path)
    write_all(journal, make_episode(1).session)
    assert left_behind(tmp_path) == ()
    journal.close()
    assert len(left_behind(tmp_path)) == 1


def test_a_torn_entry_costs_no_other(tmp_path: Path, make_episode: MakeEpisode) -> None:
    """Whatever byte the last entry was cut at, the turns before it are read."""
    record = make_episode(1, num_turns=3).session
    journal = Journal(tmp_path)
    write_all(journal, replace(record, turns=record.turns[:2]))
    (path,) = (tmp_path / "journal").iterdir()
    start = path.stat().st_size
    journal.add_turn(record.id, record.nodes[record.turns[1].node + 1 :], record.turns[2])
    journal.close()
    whole = path.read_bytes()
    for cut in range(start, len(whole)):
        path.write_bytes(whole[:cut])
        (found,) = read_unfinished([path])
        assert found.record.turns == record.turns[:2]


def test_a_changed_byte_costs_its_entry_and_what_builds_on_it(
    tmp_path: Path, make_episode: MakeEpisode, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two sessions, that with the damaged entry ends before it, the other is whole; the file is kept, and said."""
    damaged, whole = (make_episode(seed, num_turns=3).session for seed in (1, 2))
    journal = Journal(tmp_path)
    for idx in range(3):
        for record in (damaged, whole):
            journal.add_turn(record.id, record.nodes[2 * idx : 2 * idx + 2], record.turns[idx])
    journal.close()
    (path,) = (tmp_path / "journal").iterdir()
    content = bytearray(path.read_bytes())
    content[content.index(damaged.turns[1].id.encode()) + 20] ^= 1
    path.write_bytes(content)
    first, second = read_unfinished([path])
    assert first.record.turns == damaged.turns[:1] and second.record == whole
    discard([path])
    assert [each.name for each in path.parent.iterdir()] == [f"damaged-{path.name}"]
    assert "is damaged: turns of open sessions are lost" in caplog.text


def test_a_full_disk_is_said_and_the_next_entry_makes_up_for_it(
    tmp_path: Path, make_episode: MakeEpisode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn that cannot be written is an error; once there is room again, no turn of the session is missing."""
    record = make_episode(1, num_turns=2).session
    journal = Journal(tmp_path)
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:10]))
    with pytest.raises(BackendError, match="No space left"):
        journal.add_turn(record.id, record.nodes[:2], record.turns[0])
    monkeypatch.undo()
    journal.add_turn(record.id, record.nodes[2:], record.turns[1])
    journal.close()
    (found,) = read_unfinished(left_behind(tmp_path))
    assert found.record == record


WRITER = """
import sys, time
sys.path.insert(0, sys.argv[2])
from dataclasses import replace
from itertools import pairwise
from conftest import episode_of
from ludus.runs.store import RunStore
store = RunStore.create(sys.argv[1], "run", "")
ended, open_ = episode_of(1, num_turns=2), episode_of(2, num_turns=3)
for episode in (ended, open_):
    store.journal.info(episode.session.id, {"group_id": "g7", "metadata": {"user": "ann"}})
    done = 0
    for turn in episode.session.turns:
        store.journal.add_turn(episode.session.id, episode.session.nodes[done:turn.node + 1], turn)
        done = turn.node + 1
store.journal.add_rewards(open_.session.id, {open_.session.turns[1].id: 0.5})
store.add_episode(replace(ended, id=ended.session.id))
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_killed_process_loses_no_turn(tmp_path: Path, make_episode: MakeEpisode) -> None:
    """After `kill -9` the run holds the ended episode and, as cancelled, the open session with rewards and group."""
    command = [sys.executable, "-c", WRITER, str(tmp_path), str(Path(__file__).parent)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    process.stdin.close()
    with RunStore.open(tmp_path / "run") as run:
        ended, broken_off = run.episodes()
    assert ended.session == make_episode(1, num_turns=2).session
    assert broken_off.session == make_episode(2, num_turns=3).session
    assert broken_off.outcome.kind == "cancelled"
    assert list(broken_off.rewards.values()) == [0.5] == [broken_off.reward]
    assert (broken_off.group_id, broken_off.metadata) == ("g7", {"user": "ann"})
    with RunStore.open(tmp_path / "run") as run:
        assert run.num_episodes == 2


def test_a_session_that_was_kept_is_not_adopted_again(tmp_path: Path, make_episode: MakeEpisode) -> None:
    """A process killed between keeping an episode and emptying its journal leaves the episode there once."""
    episode = replace(make_episode(1), id="session-1")
    with RunStore.create(tmp_path, "run", "") as store:
        store.add_episode(episode)
    journal = Journal(tmp_path / "run")
    write_all(journal, episode.session)
    journal.close()
    with RunStore.open(tmp_path / "run") as run:
        assert list(run.episodes()) == [episode]
    assert left_behind(tmp_path / "run") == ()


def test_rewards_may_change_after_the_end(tmp_path: Path, make_episode: MakeEpisode) -> None:
    """`change_episode` replaces the last episode of that id, and no other."""
    episode = make_episode(1)
    with RunStore.create(tmp_path, "run", "") as store:
        store.add_episode(episode)
        store.add_episode(episode)
        store.change_episode(replace(episode, reward=7.0))
        assert [one.reward for one in store.episodes()] == [episode.reward, 7.0]
