"""Weights that every rank sends by itself are those that rank 0 would have gathered."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ludus.errors import UserError
from ludus.trainer.broadcast import Sent, gloo_addresses, measured, receive
from ludus.trainer.group import open_rendezvous
from ludus.trainer.sharded import ShardedTrainer, ShardedWeights
from ludus_vllm.packed import Announcement, grouped
from tests.trainer.teams import Team, batch, sharded


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = Team()
    yield team
    team.end()


def received(
    trainer: ShardedTrainer, published: ShardedWeights, announced: Any
) -> tuple[dict[str, Tensor], list[Sent]]:
    """What one receiver gets, and what each rank has sent."""
    meeting, _store = open_rendezvous("127.0.0.1")
    addresses = gloo_addresses(meeting, trainer.num_ranks)
    got: list[tuple[str, Tensor]] = []
    whole = Announcement(**announced)
    listening = threading.Thread(target=lambda: got.extend(receive(whole, addresses)), daemon=True)
    listening.start()
    published.join("server", addresses)
    sent = published.broadcast("server", announced, is_measured=True)
    listening.join(timeout=60)
    assert not listening.is_alive()
    published.leave("server")
    return dict(got), sent


@pytest.mark.parametrize(
    ("family", "size", "lora", "split"),
    [("llama", 2, None, {}), ("qwen2", 3, None, {}), ("qwen3", 4, None, {"tensor": 2}), ("llama", 2, 4, {"tensor": 2})],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_ranks_send_is_what_one_would_have_gathered(
    team: Team, tiny_models: Any, family: str, size: int, lora: int | None, split: dict[str, int], dtype: str
) -> None:
    """To the bit, by the names of saved files; no message is larger than its share of the tensors sent together, and
    no rank sends what another one sends too."""
    with sharded(team, tiny_models(family), size, lora=lora, dtype=dtype, split=split) as trainer:
        trainer.train_batch(batch())
        published = trainer.publish()
        announced = published.announce(most_bytes=8_000)
        assert len(announced["groups"]) > 1
        got, sent = received(trainer, published, announced)
        expected = dict(published.named_tensors())
    assert list(got) == list(expected)
    assert all(each.dtype == expected[name].dtype and torch.equal(each, expected[name]) for name, each in got.items())
    together = max(8_000, *(each.nbytes for each in expected.values()))
    most = together if lora else 0.7 * together  # the first rank sends what both have of adapters
    assert all(0 < each.largest_bytes <= most for each in sent)
    total = sum(each.nbytes for each in expected.values())
    assert total <= sum(each.total_bytes for each in sent) <= total + 16 * size * len(expected)
    assert all(each.peak_bytes is not None and each.peak_bytes >= 0 for each in sent)


def test_an_older_version_is_sent_until_the_next_is_published(team: Team, tiny_model_folder: Path) -> None:
    """Who was away gets what was published last, not what is being trained."""
    with sharded(team, tiny_model_folder, 2) as trainer:
        trainer.train_batch(batch())
        published = trainer.publish()
        published.copy_into_shared()
        expected = {name: each.clone() for name, each in published.named_tensors()}
        trainer.train_batch(batch())
        got, _ = received(trainer, published, published.announce())
    assert got.keys() == expected.keys() and all(torch.equal(each, expected[name]) for name, each in got.items())


def test_experts_that_files_hold_one_by_one_are_refused(team: Team, tiny_models: Any) -> None:
    """The error says what does the same by other ways."""
    with (
        sharded(team, tiny_models("minimax_m2"), 2) as trainer,
        pytest.raises(UserError, match=r"keeps several weights .* set engine\.weights=auto"),
    ):
        trainer.publish().announce()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody tells the peak")
def test_what_a_process_has_held_for_a_moment_is_measured() -> None:
    """Also where as much was free before, which the process had kept."""
    for _ in range(2):
        with measured() as peak:
            torch.ones(8 << 20)
            assert (peak() or 0) >= 30 << 20


def test_an_announcement_is_json_and_its_groups_are_bounded() -> None:
    """Tensors stay in order; one that is larger than the bound is alone."""
    assert grouped([3, 3, 3, 9, 1, 1], 6) == [[0, 1], [2], [3], [4, 5]]
    about = Announcement(["w"], ["bfloat16"], [[4, 6]], [[[[0, 4], [0, 3]], [[0, 4], [3, 6]]]], [[0]])
    assert Announcement(**asdict(about)) == about and about.num_senders == 2
    assert about.message_bytes([0], 1) == 4 * 3 * 2
