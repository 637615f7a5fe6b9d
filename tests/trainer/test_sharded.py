from __future__ import annotations

import json
import math
import threading
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from ludus.algorithms.pack import DEMONSTRATED, OWN, REPLAYED, Batch, pack
from ludus.algorithms.settings import AlgorithmSettings
from ludus.errors import BackendError, UserError
from ludus.models.load import quiet, save_model
from ludus.runs.tokens import TokenColumns
from ludus.trainer.critic import CRITIC_FOLDER
from ludus.trainer.export import export_model
from ludus.trainer.group import TorchRanks, open_rendezvous
from ludus.trainer.sharded import ShardedTrainer, follow_commands
from ludus.trainer.step import ModelTrainer
from tests.trainer.teams import (
    COUNT,
    SETTINGS,
    Team,
    batch,
    by_turn,
    relative_difference,
    sequences,
    sharded,
    weights,
    whole,
)


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = Team()
    yield team
    team.end()


@pytest.mark.parametrize(("family", "size"), [("llama", 2), ("qwen2", 2), ("gemma2", 3), ("gpt_oss", 2)])
def test_the_gradient_of_several_ranks_is_that_of_one(team: Team, tiny_models: Any, family: str, size: int) -> None:
    """Rows of unequal length, not as many as fit the ranks, tied and untied heads: equal to 1e-5 in fp32."""
    assert len(batch().rows) % size
    folder = tiny_models(family)
    alone = whole(folder)
    expected = alone.forward_backward(batch())
    gradients = dict(alone.optimizer.gradients())
    with sharded(team, folder, size) as trainer:
        seen = trainer.forward_backward(batch())
        got = {name: trainer.gradient(name) for name in gradients}
    assert relative_difference(got, gradients) <= 1e-5
    assert seen == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("size", "lora", "settings"),
    [
        (2, None, {"activation_checkpointing": True}),
        (2, None, {"algorithm": {"kl": {"beta": 0.1}}}),
        (2, None, {"algorithm": {"name": "dpo"}}),
        (2, None, {"algorithm": {"name": "kto"}, "minibatches": 2}),
        (2, None, {"minibatches": 2}),
        (2, None, {"algorithm": {"epochs": 2}, "minibatches": 2}),
        (3, None, {"algorithm": {"loss": "vespo", "top_entropy": 0.5, "entropy": {"coef": 0.1}}, "minibatches": 2}),
        (2, None, {"optimizer": {"lr": 1e-2, "max_grad_norm": 0.01, "weight_decay": 0.1}}),
        # with two rows in each of an adapter's matrices the third rank keeps nothing of some
        (3, 2, {}),
    ],
)
def test_a_run_on_several_ranks_is_a_run_on_one(
    team: Team, tiny_model_folder: Path, size: int, lora: int | None, settings: dict[str, Any]
) -> None:
    """Losses, norms and weights of three steps are equal but for rounding, and so is the score of a text."""
    curves = []
    minibatches = settings.pop("minibatches", 1)
    parts = [batch().rows[start::minibatches] for start in range(minibatches)]
    alone = whole(tiny_model_folder, lora=lora, **settings)
    with sharded(team, tiny_model_folder, size, lora=lora, **settings) as trainer:
        for each in (alone, trainer):
            curve = []
            for _ in range(3):
                curve.append(each.train_batch(Batch(tuple(parts), version=0)))
                each.publish().copy_into_shared()
            curves.append((curve, weights(each), each.score([range(20, 40)])[0]))
            assert each.version == 3
        if "kl" in settings.get("algorithm", {}):
            here, there = (each.measure(batch(), {"reference_logprobs"}) for each in (alone, trainer))
            assert sorted(here) == [*range(COUNT)] == sorted(there)
            for number, each in here.items():
                assert there[number].reference_logprobs == pytest.approx(each.reference_logprobs, abs=1e-5)
    (expected, expected_weights, expected_score), (got, got_weights, got_score) = curves
    for left, right in zip(got, expected, strict=True):
        assert left == pytest.approx(right, rel=2e-4, abs=1e-5)
    assert relative_difference(got_weights, expected_weights) <= 1e-4
    assert got_score == pytest.approx(expected_score, abs=1e-3)


@pytest.mark.parametrize("loss", ["clip", {"kind": "clip", "level": "episode"}])
@pytest.mark.parametrize("size", [2, 3])
def test_what_is_kept_of_tokens_is_the_same_on_several_ranks(
    team: Team, tiny_model_folder: Path, loss: Any, size: int
) -> None:
    """Each turn's numbers are kept once, at rank 0, whoever computed them; their sum is the loss."""
    settings: dict[str, Any] = {"algorithm": {"loss": loss}}
    parts = Batch(tuple(batch().rows[start::2] for start in range(2)), version=0)
    alone: list[TokenColumns] = []
    together: list[TokenColumns] = []
    whole(tiny_model_folder, **settings).train_batch(parts, on_tokens=alone.append)
    with sharded(team, tiny_model_folder, size, **settings) as trainer:
        metrics = trainer.train_batch(parts, on_tokens=together.append)
        assert trainer.train_batch(batch())["train/tokens"] == metrics["train/tokens"]
    expected, got = by_turn(alone[0]), by_turn(together[0])
    assert sorted(got) == [*range(COUNT)] == sorted(expected)
    for turn, columns in expected.items():
        for name, column in columns.items():
            assert got[turn][name] == pytest.approx(column, rel=1e-3, abs=1e-4), name
    losses = array("f", together[0].columns["loss"])
    assert math.fsum(losses) / 2 == pytest.approx(metrics["train/loss"], abs=1e-9)


@pytest.mark.parametrize("loss", ["clip", {"kind": "clip", "level": "episode"}])
def test_where_tokens_come_from_is_known_on_several_ranks(team: Team, tiny_model_folder: Path, loss: Any) -> None:
    """Losses, norms, importance weights of what is replayed and likelihoods of what experts gave are those of one."""
    origins = (REPLAYED, DEMONSTRATED, OWN)
    mixed = [
        replace(each, origins=(origins[number % 3],) * len(each.target_idx))
        for number, each in enumerate(sequences(COUNT))
    ]
    rows = pack(mixed, row_tokens=64)
    settings: dict[str, Any] = {"algorithm": {"loss": loss}}
    expected = whole(tiny_model_folder, **settings).train_batch(Batch.of(rows))
    with sharded(team, tiny_model_folder, 2, **settings) as trainer:
        got = trainer.train_batch(Batch.of(rows))
    assert 0 < expected["train/replay_share"] < 1 and 0 < expected["train/demonstration_share"] < 1
    assert {name: got[name] for name in expected} == pytest.approx(expected, rel=2e-4, abs=1e-5)


def test_what_is_measured_for_a_reward_is_the_same_on_several_ranks(team: Team, tiny_model_folder: Path) -> None:
    """Logprobs of those that sampled, and of the first weights after a batch has moved them: each turn's at every
    process alike."""
    settings: dict[str, Any] = {"algorithm": {"reward_kl": {"coef": 0.1}}}
    names = {"sampled_logprobs", "reference_logprobs"}
    alone = whole(tiny_model_folder, **settings)
    first = alone.measure(batch(), names)
    alone.train_batch(batch())
    with sharded(team, tiny_model_folder, 2, **settings) as trainer:
        trainer.train_batch(batch())
        got = trainer.measure(batch(), names)
    assert sorted(got) == sorted(first) == [*range(COUNT)]
    for number, each in first.items():
        assert got[number].sampled_logprobs == each.sampled_logprobs
        assert got[number].reference_logprobs == pytest.approx(each.reference_logprobs, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
def test_a_checkpoint_is_read_by_another_number_of_ranks(
    team: Team, tiny_model_folder: Path, tmp_path: Path, moments: str
) -> None:
    """Two ranks, then one, then three: weights and moments keep every bit; going on at once or later is the same."""
    optimizer = {"optimizer": {"lr": 1e-2, "moments": moments}}
    with sharded(team, tiny_model_folder, 2, **optimizer) as trainer:
        trainer.train_batch(batch())
        trainer.save(tmp_path / "two")
        trainer.publish().copy_into_shared()
        first = weights(trainer)
        trainer.train_batch(batch())
        second = weights(trainer)
    alone = whole(tiny_model_folder, **optimizer)
    alone.load(tmp_path / "two")
    assert alone.version == 1 and relative_difference(weights(alone), first) == 0
    alone.save(tmp_path / "one")
    with sharded(team, tiny_model_folder, 3, **optimizer) as trainer:
        trainer.load(tmp_path / "one")
        assert relative_difference(weights(trainer), first) == 0
        trainer.save(tmp_path / "three")
    state = files(tmp_path / "two")
    assert files(tmp_path / "one").keys() == files(tmp_path / "three").keys() == state.keys()
    for other in ("one", "three"):
        assert all(torch.equal(each, state[name]) for name, each in files(tmp_path / other).items())
    with sharded(team, tiny_model_folder, 2, **optimizer) as trainer:
        trainer.load(tmp_path / "three")
        trainer.train_batch(batch())
        assert relative_difference(weights(trainer), second) == 0


def files(folder: Path) -> dict[str, Tensor]:
    """What all files of a checkpoint hold together."""
    parts: dict[str, list[Tensor]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            parts.setdefault(name, []).append(tensor)
    return {name: torch.cat(pieces) for name, pieces in parts.items()}


def test_every_rank_keeps_its_share_alone(team: Team, tiny_model_folder: Path, tmp_path: Path) -> None:
    """Of parameters, masters and moments rank 0 holds the half; a file of the checkpoint is half as large."""
    with sharded(team, tiny_model_folder, 2) as trainer:
        trainer.train_batch(batch())
        model, masters = trainer.model, trainer._trainer.optimizer.masters
        total = sum(each.numel() for each in model.trainable.values())
        assert sum(each.numel() for each in masters.values()) <= 0.51 * total
        own = [trainer._trainer.ranks.local_piece(each) for each in model.trainable.values()]
        assert sum(each.untyped_storage().nbytes() for each in own) <= 0.51 * total * 4
        trainer.save(tmp_path)
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("*.safetensors"))]
    assert len(sizes) == 2 and max(sizes) <= 0.52 * sum(sizes)


@pytest.mark.parametrize("max_file_bytes", [10**9, 100_000])
@pytest.mark.parametrize("family", ["qwen2", "minimax_m2"])
def test_an_export_loads_with_plain_transformers(
    team: Team, tiny_models: Any, tmp_path: Path, family: str, max_file_bytes: int
) -> None:
    """In one file or in several it is what one process would have saved, experts one by one and their routers' biases
    too."""
    folder = tiny_models(family)
    alone = whole(folder)
    alone.train_batch(batch())
    alone.publish().copy_into_shared()
    save_model(alone.model, tmp_path / "alone")
    alone.save(tmp_path / "state")
    with sharded(team, folder, 2) as trainer:
        trainer.load(tmp_path / "state")
        tensors = trainer.publish().named_tensors()
        export_model(trainer.model, tensors, tmp_path / "cut", max_file_bytes=max_file_bytes)
    plain = [
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype="auto") for name in ("alone", "cut")
    ]
    assert plain[0].dtype == plain[1].dtype == torch.float32
    assert relative_difference(plain[1].state_dict(), plain[0].state_dict()) == 0
    names = [{path.name for path in (tmp_path / name).iterdir()} for name in ("alone", "cut")]
    assert (names[0] == names[1]) == (max_file_bytes == 10**9)
    again = whole(folder)
    again.take_weights(tmp_path / "cut")
    assert relative_difference(weights(again), weights(alone)) == 0


def test_adapters_are_exported_as_peft_reads_them(team: Team, tiny_model_folder: Path, tmp_path: Path) -> None:
    """The folder holds the adapter alone, with its configuration."""
    with sharded(team, tiny_model_folder, 2, lora=4) as trainer:
        trainer.train_batch(batch())
        trained = weights(trainer)
        trainer.export(tmp_path / "adapter")
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny_model_folder, dtype=torch.float32)
    with quiet():
        loaded = peft.get_peft_model_state_dict(peft.PeftModel.from_pretrained(base, tmp_path / "adapter"))
    assert relative_difference(loaded, trained) == 0
    assert any(each.abs().max() > 0 for name, each in loaded.items() if "lora_B" in name)


def test_publishing_may_be_given_up(team: Team, tiny_model_folder: Path) -> None:
    """Tensors come one by one, and a reader that leaves after the first does not keep the ranks from training.

    One that comes back late gets the version that was published, not the one being trained.
    """
    alone = whole(tiny_model_folder)
    with sharded(team, tiny_model_folder, 2) as trainer:
        name, first = next(iter(trainer.publish().named_tensors()))
        assert torch.equal(first, dict(alone.publish().named_tensors())[name])
        early = trainer.publish()
        assert trainer.train_batch(batch())["train/loss"] == pytest.approx(alone.train_batch(batch())["train/loss"])
        assert torch.equal(dict(early.named_tensors())[name], first)
        assert not torch.equal(weights(trainer)[name], first)


def test_what_was_published_stays_until_the_next_is(team: Team, tiny_model_folder: Path) -> None:
    """An engine that takes weights while the next step trains, or before its weights are published, gets those of one
    version, whichever other engine has taken them meanwhile."""
    parts = Batch(tuple(batch().rows[start::2] for start in range(2)), 0)
    with sharded(team, tiny_model_folder, 2) as trainer:
        trainer.train_batch(parts)
        published = trainer.publish()
        published.copy_into_shared()
        before = {name: each.clone() for name, each in published.named_tensors()}
        trainer.train_batch(parts)
        published.copy_into_shared()
        after = dict(published.named_tensors())
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert any(not torch.equal(before[name], each) for name, each in trainer.publish().named_tensors())


def test_a_rank_that_is_left_alone_ends_with_one_sentence() -> None:
    """gloo's own words, with its paths and threads, are for nobody."""

    class Alone:
        rank = 1

        def receive(self, rank: int) -> Any:
            raise RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer")

    with pytest.raises(BackendError, match=r"^rank 1 of the trainer ends: the connection to another rank was lost"):
        follow_commands(cast(Any, None), cast(Any, Alone()))


def test_ranks_that_cannot_meet_end_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they do later; and this process may try it again."""
    _, store = open_rendezvous("127.0.0.1")

    def lose(**_: Any) -> None:
        raise RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer")

    with monkeypatch.context() as patch, pytest.raises(BackendError, match=r"^rank 0 of the trainer ends: the conn"):
        patch.setattr(torch.distributed, "new_group", lose)
        TorchRanks(0, 1, torch.device("cpu"), store)
    _, store = open_rendezvous("127.0.0.1")
    TorchRanks(0, 1, torch.device("cpu"), store).close()


def test_a_rank_that_was_lost_needs_no_end(caplog: pytest.LogCaptureFixture) -> None:
    """Who closes the trainer of a run that ends for another reason hears of it, and the reason stays the reason."""

    class Lost:
        size = 3
        is_aborted = False
        is_closed = False
        told: ClassVar[list[int]] = []

        def send(self, rank: int, value: Any) -> None:
            self.told.append(rank)
            if rank == 1:
                raise RuntimeError("[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:32159")

        def close(self, *, is_broken: bool) -> None:
            assert not is_broken
            self.is_closed = True

    ranks = Lost()
    ShardedTrainer(cast(Any, None), cast(Any, ranks)).close()
    assert ranks.is_closed and ranks.told == [1, 2] and "rank 1 of the trainer had ended" in caplog.text


class Waiting:
    """Two ranks on cards, of which the other is gone: whoever waits for it does so until it is broken off."""

    size = 2
    is_aborted = False
    was_closed_broken: bool | None = None

    def __init__(self) -> None:
        self._broken_off = threading.Event()

    def send(self, rank: int, value: Any) -> None:
        pass

    def wait(self) -> None:
        assert self._broken_off.wait(60)
        raise ValueError("Default process group has not been initialized, please make sure to call init_process_group.")

    def abort(self) -> None:
        self.is_aborted = True
        self._broken_off.set()

    def close(self, *, is_broken: bool) -> None:
        self.was_closed_broken = is_broken


def test_whoever_waits_for_a_lost_rank_is_let_go() -> None:
    """The error says that a rank was lost, whatever the broken off sum says; closing waits for nobody."""
    ranks = Waiting()
    own = SimpleNamespace(optimizer=SimpleNamespace(copy_to_parameters=ranks.wait))
    trainer = ShardedTrainer(cast(Any, own), cast(Any, ranks))
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(trainer.copy_to_parameters)
        ranks.abort()
        with pytest.raises(BackendError, match=r"over 2 ranks failed in .copy.: the connection .* was lost"):
            working.result()
    trainer.close()
    assert ranks.was_closed_broken


def test_a_trainer_of_ranks_that_are_lost_meanwhile_tells_none_to_end() -> None:
    """Nor does it wait."""
    ranks = Waiting()
    ranks.abort()
    ranks.send = lambda rank, value: pytest.fail("it was told")  # type: ignore[method-assign]
    ShardedTrainer(cast(Any, None), cast(Any, ranks)).close()
    assert ranks.was_closed_broken


def test_what_cannot_be_done_is_refused_by_all(team: Team, tiny_model_folder: Path, tmp_path: Path) -> None:
    """A checkpoint that is not there, or not whole, is named, and training goes on."""
    with sharded(team, tiny_model_folder, 2) as trainer:
        with pytest.raises(UserError, match=r"trainer\.json is missing"):
            trainer.load(tmp_path)
        trainer.save(tmp_path)
        (tmp_path / "trainer-00002-of-00002.safetensors").unlink()
        with pytest.raises(UserError, match=r"not whole.*set run_root"):
            trainer.load(tmp_path)
        trainer.train_batch(batch())
        trainer.configure(lr=1e-3, algorithm=AlgorithmSettings(correction="bypass"))
        assert trainer.train_batch(batch())["train/lr"] == 1e-3
        with pytest.raises(UserError, match=r"algorithm 'grpo' compares"):
            trainer.configure(lr=1e-3, algorithm=AlgorithmSettings(kl={"beta": 0.1}))


def test_a_batch_without_a_token_counts_in_the_schedule_of_all(
    team: Team, tiny_model_folder: Path, tmp_path: Path
) -> None:
    """The next one has the learning rate after it on every rank, and a checkpoint has its place in the schedule."""
    optimizer = {"lr": 1e-2, "max_grad_norm": None, "decay": "linear", "total_steps": 4}
    alone = whole(tiny_model_folder, optimizer=optimizer)
    with sharded(team, tiny_model_folder, 2, optimizer=optimizer) as trainer:
        for each in (alone, trainer):
            assert each.train_batch(Batch(((), ()), version=0))["train/optimizer_steps"] == 0
            assert each.train_batch(batch())["train/lr"] == pytest.approx(0.75e-2) and each.version == 2
        trainer.save(tmp_path)
        assert relative_difference(weights(trainer), weights(alone)) <= 1e-4
    assert json.loads((tmp_path / "trainer.json").read_text())["num_batches"] == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_disk_that_refuses_one_rank_ends_none(team: Team, tiny_model_folder: Path, tmp_path: Path, rank: int) -> None:
    """The error says what was refused to whom; once it no longer is, the next checkpoint is whole."""
    part = tmp_path / f"trainer-0000{rank + 1}-of-00002.safetensors"
    with sharded(team, tiny_model_folder, 2) as trainer:
        trainer.train_batch(batch())
        part.mkdir()
        with pytest.raises(OSError) as refused:
            trainer.save(tmp_path)
        assert str(refused.value).startswith("rank 1 of the trainer: ") == bool(rank)
        part.rmdir()
        trainer.save(tmp_path)
        expected = weights(trainer)
        trainer.train_batch(batch())
        trainer.load(tmp_path)
        assert relative_difference(weights(trainer), expected) == 0


def test_a_lost_rank_ends_the_training(team: Team, tiny_model_folder: Path) -> None:
    """Whoever is killed in the middle is noticed at once; the error says how to go on, and nothing hangs."""
    with sharded(team, tiny_model_folder, 2) as trainer:
        trainer.train_batch(batch())
        lost = team.processes.pop(0)
        lost.kill()
        lost.communicate()
        with pytest.raises(BackendError, match=r"over 2 ranks failed in .train.*last checkpoint") as failed:
            trainer.train_batch(batch())
        assert "gloo" not in str(failed.value)
        with pytest.raises(BackendError, match="was lost"):
            trainer.save(tiny_model_folder)


@pytest.mark.parametrize(
    ("lora", "critic"),
    [
        (None, {**SETTINGS, "epochs": 2}),
        (4, SETTINGS),
        (None, {"model": "shared"}),
        (4, {"model": "shared", "loss_weight": 2.0}),
    ],
)
def test_a_critic_on_several_ranks_is_one_on_one(
    team: Team, tiny_model_folder: Path, tmp_path: Path, lora: int | None, critic: dict[str, Any]
) -> None:
    """Values, losses and both models after batches of two minibatches, in one epoch or two; what two ranks saved, one
    and two go on from, two to equal bits."""
    settings: dict[str, Any] = {"algorithm": {"name": "ppo"}, "critic": {**critic, "clip_range": 0.2}, "lora": lora}
    taught = [
        replace(each, values=(0.1,) * len(each.target_idx), value_targets=each.advantages) for each in sequences(COUNT)
    ]
    rows = pack(taught, row_tokens=64)
    parts = Batch((rows[::2], rows[1::2]), version=0)

    def train(trainer: ModelTrainer | ShardedTrainer, steps: int) -> list[dict[str, float]]:
        seen = []
        for _ in range(steps):
            seen.append(dict(trainer.train_batch(parts)))
            trainer.publish().copy_into_shared()
        return seen

    alone = whole(tiny_model_folder, **settings)
    expected, values = train(alone, 2), alone.measure(parts, {"values"})
    with sharded(team, tiny_model_folder, 2, **settings) as trainer:
        for left, right in zip(train(trainer, 2), expected, strict=True):
            assert left == pytest.approx(right, rel=1e-3, abs=1e-5)
        got = trainer.measure(parts, {"values"})
        assert sorted(got) == sorted(values) == [*range(COUNT)]
        for number, each in values.items():
            assert got[number].values == pytest.approx(each.values, rel=1e-2, abs=1e-3)
        trainer.save(tmp_path / "two")
        train(trainer, 1)
        trainer.save(tmp_path / "later")
    alone.load(tmp_path / "two")
    for number, each in got.items():
        assert alone.measure(parts, {"values"})[number].values == pytest.approx(each.values, abs=1e-5)
    with sharded(team, tiny_model_folder, 2, **settings) as resumed:
        resumed.load(tmp_path / "two")
        train(resumed, 1)
        resumed.save(tmp_path / "again")
    for folder in (Path(), Path(CRITIC_FOLDER)):
        for path in (tmp_path / "later" / folder).glob("*.safetensors"):
            assert path.read_bytes() == (tmp_path / "again" / folder / path.name).read_bytes()
