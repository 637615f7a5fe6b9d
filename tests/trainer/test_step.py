import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import transformers
from torch import Tensor

from ludus.algorithms.pack import Batch, PackedRow, TrainSequence, pack
from ludus.algorithms.settings import SUPERVISED, AlgorithmSettings
from ludus.algorithms.table import LOSSES
from ludus.engines import lease as lease_module
from ludus.engines.lease import ComputeLease
from ludus.errors import UserError
from ludus.models.load import load_model, save_model
from ludus.models.settings import LoraSettings, ModelSettings
from ludus.trainer.adamw import make_adamw
from ludus.trainer.metric_means import TokenMeans
from ludus.trainer.settings import OptimizerSettings, TrainerSettings
from ludus.trainer.step import ModelTrainer
from tests.api.cards.live import LiveBytes

FAMILIES = ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gpt_oss")
OPTIMIZER = OptimizerSettings(lr=1e-2, max_grad_norm=None)


def make_trainer(
    folder: Path,
    *,
    lora: bool = False,
    dtype: Literal["float16", "float32"] = "float32",
    algorithm: dict[str, Any] | None = None,
    **settings: object,
) -> ModelTrainer:
    adapters = LoraSettings(rank=4, alpha=8) if lora else None
    model = load_model(ModelSettings(path=str(folder), dtype=dtype, lora=adapters))
    chosen = AlgorithmSettings(**(algorithm or {}))
    return ModelTrainer(model, TrainerSettings(**{"optimizer": OPTIMIZER, **settings}), chosen, lease=ComputeLease())


def sequence(token_ids: Sequence[int], target_idx: Sequence[int], advantage: float, weight: float) -> TrainSequence:
    count = len(target_idx)
    return TrainSequence(
        token_ids=tuple(token_ids),
        target_idx=tuple(target_idx),
        advantages=(advantage,) * count,
        weights=(weight,) * count,
        logprobs=tuple(-5.0 - 0.1 * index for index in range(count)),
        versions=(0,) * count,
        temperatures=tuple(1.0 + 0.2 * (index % 2) for index in range(count)),
    )


def branching_sequences() -> list[TrainSequence]:
    """Siblings that share a prompt, share turns and part; and one that shares nothing."""
    prompt, a, b, c = list(range(5, 25)), [30, 31, 32], [40, 41], [30, 31, 50, 51, 52]
    weight = 1 / 24
    return [
        sequence(prompt + a + [60, 61] + b, (20, 21, 22, 25, 26), 1.0, weight),
        sequence(prompt + a + [62] + c, (20, 21, 22, 24, 25, 26, 27, 28), -0.5, weight),
        sequence(prompt + c, (20, 21, 22, 23, 24), 0.7, weight),
        sequence(list(range(100, 130)), (3, 10, 15, 20, 28, 29), -1.2, weight),
    ]


def gradients_of(trainer: ModelTrainer, batches: Sequence[Batch]) -> dict[str, Tensor]:
    for batch in batches:
        trainer.forward_backward(batch)
    return {name: gradient.clone() for name, gradient in trainer.optimizer.gradients().items()}


def in_minibatches(rows: Sequence[PackedRow], count: int) -> Batch:
    """The rows shared out, each part with the whole weight."""
    parts = [rows[start::count] for start in range(count)]
    weights = [sum(sum(row.weights) for row in part) for part in parts]
    return Batch(
        tuple(
            tuple(replace(row, weights=tuple(each * sum(weights) / weight for each in row.weights)) for row in part)
            for part, weight in zip(parts, weights, strict=True)
        ),
        version=0,
    )


def largest_difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """Over all parameters, relative to the largest entry of each."""
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max() / right[name].abs().max()) for name in left)


@pytest.mark.parametrize("family", FAMILIES)
def test_packing_never_changes_the_gradient(family: str, tiny_models: Callable[[str], Path]) -> None:
    """The gradient of the packed tree is that of the sequences one at a time, to 1e-5, in every family."""
    sequences = branching_sequences()
    packed = Batch.of(pack(sequences, row_tokens=512), version=0)
    assert len(packed.rows) == 1 and packed.num_row_tokens < packed.num_sequence_tokens
    alone = [Batch.of(pack([each], row_tokens=512), version=0) for each in sequences]
    folder = tiny_models(family)
    together = gradients_of(make_trainer(folder), [packed])
    one_by_one = gradients_of(make_trainer(folder), alone)
    assert largest_difference(together, one_by_one) <= 1e-5


def numbered(sequences: Sequence[TrainSequence]) -> list[TrainSequence]:
    """Each a turn of its own, two turns an episode, two episodes a group: one is good, one bad."""
    return [
        replace(
            each,
            turns=(number,) * len(each.target_idx),
            episodes=(number // 2,) * len(each.target_idx),
            groups=(number // 4,) * len(each.target_idx),
        )
        for number, each in enumerate(sequences)
    ]


MENU: dict[str, dict[str, Any]] = {
    **{kind: {"loss": kind} for kind in LOSSES if kind not in ("own", "dro", "dpo", "kto", "orpo")},
    **{name: {"name": name} for name in ("dpo", "kto", "orpo")},
    "ipo": {"name": "dpo", "loss": {"variant": "ipo"}},
    "gspo": {"loss": {"level": "episode"}},
    "turns": {"loss": {"kind": "cispo", "level": "turn"}, "correction": {"cap": 1.5, "level": "turn"}},
    "entropy": {"entropy": {"coef": 0.1}},
    "top_entropy": {"top_entropy": 0.4, "entropy": {"coef": 0.1}, "kl": {"beta": 0.1}},
    "several": {
        "correction": [
            {"cap": 1.5, "level": "turn"},
            {"kind": "mask", "weighs": False, "low": 0.9, "high": 1.1, "counted": False},
            {"kind": "divergence", "high": 0.5, "level": "episode", "counted": False},
        ],
        "kl": {"beta": 0.1},
    },
    "off_policy": {"off_policy_mask": {"threshold": 0.1}},
    "second_moment": {"second_moment": 0.01},
    "interpolated": {"correction": {"cap": 1.5}, "proximal": "interpolate"},
    "interpolated together": {"correction": {"cap": 1.5, "level": "turn"}, "proximal": "interpolate"},
}


@pytest.mark.parametrize("name", MENU)
def test_no_loss_depends_on_rows(name: str, tiny_model_folder: Path) -> None:
    """Whatever an algorithm takes together, the gradient is that of any rows, to 2e-5."""
    sequences = numbered(branching_sequences())
    made = []
    for row_tokens in (16, 512):
        trainer = make_trainer(
            tiny_model_folder, algorithm={"correction": "bypass", **MENU[name]}, optimizer=OptimizerSettings(lr=1e-3)
        )
        rows = pack(sequences, row_tokens=row_tokens)
        seen = trainer.forward_backward(Batch.of(rows))
        made.append((len(rows), seen, {name: each.clone() for name, each in trainer.optimizer.gradients().items()}))
    (many, one), seen, gradients = zip(*made, strict=True)
    assert many > one
    assert largest_difference(*gradients) <= 2e-5
    assert seen[0] == pytest.approx(seen[1], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("settings", [{"activation_checkpointing": True}, {"lora": True}])
def test_packing_holds_with_checkpointing_and_adapters(settings: dict[str, bool], tiny_model_folder: Path) -> None:
    """Recomputed layers and adapters keep the gradient of one sequence at a time."""
    sequences = branching_sequences()
    lora = settings.get("lora", False)
    together = gradients_of(
        make_trainer(tiny_model_folder, **settings), [Batch.of(pack(sequences, row_tokens=64), version=0)]
    )
    alone = [Batch.of(pack([each], row_tokens=512), version=0) for each in sequences]
    one_by_one = gradients_of(make_trainer(tiny_model_folder, lora=lora), alone)
    moved = {name for name in together if one_by_one[name].abs().max() > 0}  # fresh adapters have a zero half
    assert moved
    assert largest_difference({n: together[n] for n in moved}, {n: one_by_one[n] for n in moved}) <= 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_supervised_gradient_is_that_of_plain_transformers(family: str, tiny_models: Callable[[str], Path]) -> None:
    """The mean cross-entropy of one sequence has the gradient that plain transformers and autograd give."""
    folder = tiny_models(family)
    ids = list(range(30, 60))
    weight = 1 / (len(ids) - 1)
    plain_temperature = replace(sequence(ids, range(1, len(ids)), 0.0, weight), temperatures=(1.0,) * (len(ids) - 1))
    trainer = make_trainer(folder)
    trainer.forward_backward(Batch.of(pack([plain_temperature], row_tokens=64), version=0), SUPERVISED)
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    logits = plain(torch.tensor([ids])).logits[0]
    torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])).backward()
    expected = {name: parameter.grad for name, parameter in plain.named_parameters() if parameter.grad is not None}
    assert largest_difference(trainer.optimizer.gradients(), expected) <= 2e-4


def test_score_is_the_log_softmax_of_plain_transformers(tiny_model_folder: Path) -> None:
    """Scores are the logprobs of every token but the first; sequences too short for one score nothing."""
    trainer = make_trainer(tiny_model_folder)
    ids = list(range(40, 70))
    plain = transformers.AutoModelForCausalLM.from_pretrained(tiny_model_folder, dtype=torch.float32)
    with torch.no_grad():
        logs = torch.log_softmax(plain(torch.tensor([ids])).logits[0], -1)
    expected = logs[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    scored, empty = trainer.score([ids, [7]])
    assert scored == pytest.approx(expected, abs=1e-4)
    assert empty == ()


def test_training_moves_masters_and_publishing_moves_weights(tiny_model_folder: Path) -> None:
    """A step leaves the weights that sample alone until they are published; then the good answer is likelier."""
    trainer = make_trainer(tiny_model_folder)
    good = sequence([5, 6, 7, 8, 9], (2, 3, 4), 1.0, 1 / 3)
    batch = Batch.of(pack([good], row_tokens=64), version=0)
    (before,) = trainer.score([good.token_ids])
    metrics = trainer.train_batch(batch)
    assert trainer.score([good.token_ids]) == (before,)
    assert trainer.version == 1
    trainer.publish().copy_into_shared()
    (after,) = trainer.score([good.token_ids])
    assert sum(after[1:]) > sum(before[1:])
    named = dict(trainer.publish().named_tensors())
    assert all(torch.equal(named[name], each) for name, each in trainer.model.trainable.items())
    names = ["loss", "kl", "entropy", "clip_fraction", "grad_norm", "lr", "tokens", "ratio_mean"]
    names += ["logprob_gap_mean", "logprob_gap_max"]
    assert {f"train/{name}" for name in names} <= metrics.keys()
    assert metrics["train/tokens"] == 3 and metrics["train/ratio_mean"] == pytest.approx(1.0)


def test_minibatches_take_several_steps_and_leave_the_weights_alone(tiny_model_folder: Path) -> None:
    """Two minibatches are two optimizer steps with a ratio that moves away from 1; nothing is published by them."""
    trainer = make_trainer(tiny_model_folder, row_tokens=32)
    batch = in_minibatches(pack(branching_sequences(), row_tokens=32), 2)
    before = {name: each.detach().clone() for name, each in trainer.model.trainable.items()}
    metrics = trainer.train_batch(batch)
    assert metrics["train/optimizer_steps"] == 2 and trainer.optimizer.num_batches == trainer.version == 1
    assert metrics["train/ratio_mean"] != pytest.approx(1.0, abs=1e-6)
    assert all(torch.equal(before[name], each) for name, each in trainer.model.trainable.items())


@pytest.mark.parametrize(("count", "algorithm"), [(4, {}), (1, {"kl": {"beta": 0.1}})])
def test_who_joins_while_a_step_trains_gets_the_published_weights(
    count: int, algorithm: dict[str, Any], tiny_model_folder: Path
) -> None:
    """Weights that are read in the middle of a batch are those of the last publish, bit by bit."""
    trainer = make_trainer(tiny_model_folder, row_tokens=32, algorithm=algorithm)
    batch = in_minibatches(pack(branching_sequences(), row_tokens=32), count)
    trainer.train_batch(batch)
    published = trainer.publish()
    published.copy_into_shared()
    expected = {name: weight.clone() for name, weight in published.named_tensors()}
    joined: list[dict[str, Tensor]] = []
    forward, masters = trainer._backward._forward, trainer.optimizer.masters
    before = {name: each.clone() for name, each in masters.items()}
    joiner = threading.Thread(
        target=lambda: joined.append({name: weight.clone() for name, weight in published.named_tensors()})
    )

    def join_now() -> None:
        if joiner.ident is None:
            joiner.start()
        joiner.join(timeout=0.05)  # it waits for the lease; without one it would be done by now

    class ManagedServer:
        """Lets the other thread read whenever the forward pass of a row has run."""

        def __getattr__(self, name: str) -> Any:
            return getattr(forward, name)

        def __call__(self, row: Any) -> Any:
            join_now()
            return forward(row)

        def differentiate(self, *args: Any, **kwargs: Any) -> None:
            if any(
                not torch.equal(each, before[name]) for name, each in masters.items()
            ):  # some minibatch has moved the parameters
                join_now()
            forward.differentiate(*args, **kwargs)

    trainer._backward._forward = ManagedServer()  # type: ignore[assignment]
    trainer.train_batch(batch, None if algorithm else AlgorithmSettings(correction="bypass"))
    joiner.join()
    (seen,) = joined
    assert all(torch.equal(seen[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize("lora", [False, True])
def test_who_samples_has_its_turn_inside_a_row(
    lora: bool, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between layers, there and back, and between parts of the head: the gradient keeps its bits, and nobody ever sees
    the first weights, which are lent meanwhile."""
    (row,) = pack(branching_sequences(), row_tokens=512)
    algorithm = {"kl": {"beta": 0.1}}
    alone, shared = (make_trainer(tiny_model_folder, lora=lora, algorithm=algorithm) for _ in range(2))
    for trainer in (alone, shared):  # so that the first weights are others
        trainer.train_batch(Batch.of((row,)))
        trainer.publish().copy_into_shared()
    expected = gradients_of(alone, [Batch.of((row,))])
    lease, weights = shared._lease, list(shared.model.trainable.values())
    addresses, seen, is_over = [each.data_ptr() for each in weights], list[bool](), threading.Event()

    def sample() -> None:
        while not is_over.is_set():
            with lease.hold("engine", is_read_only=True):
                seen.append([each.data_ptr() for each in weights] == addresses)

    def until_it_waits() -> None:
        while "waiting=1" not in repr(lease):
            pass

    def give_way(self: lease_module.ComputeLease, give_way: Any = lease_module.ComputeLease.give_way) -> None:
        until_it_waits()  # else how busy the machine is decides how many turns there are
        self._slice_s = 0.0
        give_way(self)

    sampler = threading.Thread(target=sample)
    with shared._hold():
        sampler.start()
        until_it_waits()
        before = len(seen)
        monkeypatch.setattr(lease_module.ComputeLease, "give_way", give_way)
        shared._backward._add_row(row, TokenMeans(), shared._algorithm, None, 0)
        during = len(seen) - before
    is_over.set()
    sampler.join()
    assert during > shared.model.config.num_layers and all(seen)
    gradients = shared.optimizer.gradients()
    assert all(torch.equal(gradients[name], each) for name, each in expected.items())


def test_kl_to_the_first_weights_is_zero_at_first_and_grows(tiny_model_folder: Path) -> None:
    """The reference is the model that training began with; computing it leaves the weights in place."""
    trainer = make_trainer(tiny_model_folder, algorithm={"kl": {"beta": 0.1}})
    batch = Batch.of(pack(branching_sequences(), row_tokens=512), version=0)
    assert trainer.train_batch(batch)["train/kl_reference"] == pytest.approx(0.0, abs=1e-6)
    trainer.publish().copy_into_shared()
    assert trainer.train_batch(batch)["train/kl_reference"] > 1e-4


def test_checkpoint_goes_on_bit_by_bit(tiny_model_folder: Path, tmp_path: Path) -> None:
    """A trainer that loaded a checkpoint ends with the same weights as one that never stopped."""
    batch = Batch.of(pack(branching_sequences(), row_tokens=512), version=0)
    trainer = make_trainer(tiny_model_folder)
    for step in range(3):
        if step == 2:
            trainer.save(tmp_path)
        trainer.train_batch(batch)
        trainer.publish().copy_into_shared()
    resumed = make_trainer(tiny_model_folder)
    resumed.load(tmp_path)
    assert resumed.version == 2
    resumed.train_batch(batch)
    resumed.publish().copy_into_shared()
    for name, each in trainer.model.trainable.items():
        assert torch.equal(each, resumed.model.trainable[name])


def test_a_resume_holds_nothing_twice(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Masters are read into those that are there, moments one by one: a card has no room for a second copy."""
    trainer = make_trainer(tiny_model_folder)
    trainer.train_batch(Batch.of(pack(branching_sequences(), row_tokens=64), version=0))
    trainer.save(tmp_path)
    fresh = make_trainer(tiny_model_folder)
    sizes = [master.nbytes for master in fresh.optimizer.masters.values()]
    with LiveBytes() as live:
        fresh.load(tmp_path)
    # two moments of each weight stay; of what is read there is one weight's at a time
    assert 2 * sum(sizes) <= live.peak <= 2 * sum(sizes) + 3 * max(sizes)


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
def test_moments_come_to_where_their_weights_are(moments: str) -> None:
    """They are read on the processor and go to the weights' device, which tensors without memory stand for here."""
    settings = OptimizerSettings.model_validate({"moments": moments})
    saved = {"exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3), "step": torch.tensor(2.0)}
    adamw = make_adamw({"w": torch.zeros(3, device="meta")}, settings)
    adamw.take_over({"w": saved})
    own = adamw.moments()["w"]
    assert {own[name].device.type for name in ("exp_avg", "exp_avg_sq")} == {"meta"}


def test_every_thread_trains_on_the_models_card(tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for a step, or a score, computes where the weights are."""
    threads: set[str] = set()
    trainer = make_trainer(tiny_model_folder)
    monkeypatch.setattr("ludus.trainer.step.use_device", lambda _: threads.add(threading.current_thread().name))
    batch = Batch.of(pack(branching_sequences(), row_tokens=64), version=0)
    asked = {"train": lambda: trainer.train_batch(batch), "score": lambda: trainer.score([[5, 6, 7]])}
    for name, work in asked.items():
        thread = threading.Thread(target=work, name=name)
        thread.start()
        thread.join()
    assert threads == set(asked)


def test_missing_checkpoint_is_named(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Loading from a folder without a checkpoint names the file that is missing."""
    with pytest.raises(UserError, match=r"trainer\.json"):
        make_trainer(tiny_model_folder).load(tmp_path)


def test_bf16_trains_with_gradients_in_fp32(tiny_model_folder: Path) -> None:
    """In bf16 the gathered gradient is fp32 and near that of fp32 weights."""
    batch = Batch.of(pack(branching_sequences(), row_tokens=512), version=0)
    exact = gradients_of(make_trainer(tiny_model_folder), [batch])
    model = load_model(ModelSettings(path=str(tiny_model_folder), dtype="bfloat16"))
    rough = gradients_of(ModelTrainer(model, TrainerSettings(), lease=ComputeLease()), [batch])
    assert all(each.dtype == torch.float32 for each in rough.values())
    for name, each in rough.items():
        assert torch.nn.functional.cosine_similarity(each.flatten(), exact[name].flatten(), dim=0) > 0.98


def test_fp16_has_the_gradient_of_fp32(tiny_model_folder: Path) -> None:
    """With losses of a millionth the gradients, whose numbers float16 does not have, are those of fp32 within 1 %."""
    tiny = [replace(each, weights=tuple(1e-6 * weight for weight in each.weights)) for each in branching_sequences()]
    batch = Batch.of(pack(tiny, row_tokens=512))
    exact = gradients_of(make_trainer(tiny_model_folder), [batch])
    trainer = make_trainer(tiny_model_folder, dtype="float16")
    trainer.forward_backward(batch)
    assert largest_difference({name: trainer.gradient(name) for name in exact}, exact) <= 0.01
    metrics = trainer.train_batch(Batch.of(pack(branching_sequences(), row_tokens=512)))
    assert 0 < metrics["train/grad_norm"] < 100 and trainer.optimizer.loss_scale.num_finite == 1


def test_fp16_that_overflows_scales_less_and_goes_on(tiny_model_folder: Path, tmp_path: Path) -> None:
    """A gradient beyond float16's largest number moves nothing and halves the factor, until one fits; a checkpoint
    knows the factor."""
    trainer = make_trainer(tiny_model_folder, dtype="float16")
    large = [replace(each, weights=tuple(1e6 * weight for weight in each.weights)) for each in branching_sequences()]
    steps = [trainer.train_batch(Batch.of(pack(large, row_tokens=512))) for _ in range(24)]
    skipped = [step.get("train/skipped_steps", 0.0) for step in steps]
    assert skipped[0] == 1 and skipped[-1] == 0
    trainer.save(tmp_path)
    other = make_trainer(tiny_model_folder, dtype="float16")
    other.load(tmp_path)
    assert other.optimizer.loss_scale.state() == trainer.optimizer.loss_scale.state() != (65536.0, 0)


def test_another_learning_rate_and_loss_from_the_next_batch_on(tiny_model_folder: Path) -> None:
    """Configured anew, a trainer steps as one that was made so; weights of the beginning cannot be had later."""
    batch = Batch.of(pack(branching_sequences(), row_tokens=512), version=0)
    algorithm: dict[str, Any] = {"correction": "bypass", "loss": {"clip_high": 0.3}, "kl": {"beta": 0.1}}
    made = make_trainer(tiny_model_folder, optimizer=OPTIMIZER.model_copy(update={"lr": 1e-3}), algorithm=algorithm)
    configured = make_trainer(tiny_model_folder)
    configured.configure(lr=1e-3, algorithm=AlgorithmSettings(**algorithm))
    assert made.train_batch(batch) == configured.train_batch(batch)
    plain = make_trainer(tiny_model_folder)
    plain.train_batch(batch)
    with pytest.raises(UserError, match=r"algorithm 'grpo' compares .* after 1 batches they are gone"):
        plain.configure(lr=1e-3, algorithm=AlgorithmSettings(**algorithm))


def test_an_adapter_keeps_the_weights_that_it_began_with(tiny_model_folder: Path, tmp_path: Path) -> None:
    """They are few: a KL term may be asked for after batches without one, and after a resume."""
    batch = Batch.of(pack(branching_sequences(), row_tokens=512), version=0)
    with_kl = AlgorithmSettings(kl={"beta": 0.1})
    trainer = make_trainer(tiny_model_folder, lora=True)
    trainer.train_batch(batch)
    trainer.publish().copy_into_shared()
    trainer.save(tmp_path)
    resumed = make_trainer(tiny_model_folder, lora=True)
    resumed.load(tmp_path)
    (later, after) = (each.train_batch(batch, with_kl)["train/kl_reference"] for each in (trainer, resumed))
    assert later == after > 1e-6


@pytest.mark.parametrize("lora", [False, True])
def test_beginning_with_the_weights_of_a_saved_model(lora: bool, tiny_model_folder: Path, tmp_path: Path) -> None:
    """They sample, and train as they would in a new trainer; weights of another model are refused."""
    batch = Batch.of(pack(branching_sequences(), row_tokens=512), version=0)
    first = make_trainer(tiny_model_folder, lora=lora)
    first.train_batch(batch)
    first.publish().copy_into_shared()
    save_model(first.model, tmp_path / "model")
    other = make_trainer(tiny_model_folder, lora=lora)
    other.train_batch(batch)
    other.take_weights(tmp_path / "model")
    assert other.score([range(3, 20)]) == first.score([range(3, 20)])
    assert other.optimizer.num_batches == 0
    with pytest.raises(UserError, match="holds no weights of"):
        make_trainer(tiny_model_folder, lora=not lora).take_weights(tmp_path / "model")


def test_a_batch_with_nothing_to_train_takes_no_step(tiny_model_folder: Path) -> None:
    """No optimizer step, and no weight is copied; the batch counts, in the schedule too."""
    optimizer = OptimizerSettings(lr=1.0, decay="linear", total_steps=4)
    trainer = make_trainer(tiny_model_folder, optimizer=optimizer)
    before = {name: each.clone() for name, each in trainer.optimizer.masters.items()}
    for parts in (((),), ((), ())):
        assert trainer.train_batch(Batch(parts, 0))["train/optimizer_steps"] == 0
    assert trainer.version == 2 and all(
        torch.equal(before[name], each) for name, each in trainer.optimizer.masters.items()
    )
    assert trainer.train_batch(Batch.of(pack(branching_sequences(), row_tokens=64)))["train/lr"] == 0.5


def test_minibatches_report_the_mean_loss_and_their_number(tiny_model_folder: Path) -> None:
    """Where weights hardly move the loss is that of one step; a minibatch without rows takes none."""
    optimizer = OptimizerSettings(lr=1e-9, max_grad_norm=None)
    rows = pack(branching_sequences()[:2] * 2, row_tokens=32)
    one = make_trainer(tiny_model_folder, optimizer=optimizer).train_batch(Batch.of(rows))
    parts = in_minibatches(rows, len(rows)).minibatches
    many = make_trainer(tiny_model_folder, optimizer=optimizer).train_batch(Batch((*parts, ()), 0))
    assert many["train/optimizer_steps"] == len(rows) and one["train/optimizer_steps"] == 1.0
    assert abs(many["train/loss"]) < 2 * abs(one["train/loss"]) + 0.1


# What two steps on `branching_sequences()` showed before any loss was written anew; rows of 32 tokens.
SEEN = {
    "default": [
        {
            "loss": -0.0483191,
            "entropy": 5.72672,
            "kl": 0.342523,
            "ratio_mean": 1,
            "clip_fraction": 0,
            "logprob_gap_mean": 0.774432,
            "logprob_gap_max": 2.44442,
            "grad_norm": 2.65729,
        },
        {
            "loss": -0.235518,
            "entropy": 5.70586,
            "kl": 0.946721,
            "ratio_mean": 1,
            "clip_fraction": 0,
            "logprob_gap_mean": 1.44976,
            "logprob_gap_max": 3.59348,
            "grad_norm": 2.97561,
        },
    ],
    "minibatches": [
        {
            "loss": 0.104648,
            "entropy": 5.73147,
            "kl_reference": 0.0196979,
            "kl": 0.325219,
            "ratio_mean": 1.01648,
            "clip_fraction": 0.0416667,
            "logprob_gap_mean": 0.774432,
            "logprob_gap_max": 2.44442,
            "grad_norm": 3.53864,
        },
        {
            "loss": 0.406812,
            "entropy": 5.70822,
            "kl_reference": 2.47893,
            "kl": 1.05081,
            "ratio_mean": 1.07808,
            "clip_fraction": 0,
            "logprob_gap_mean": 1.73811,
            "logprob_gap_max": 4.46158,
            "grad_norm": 6.88751,
        },
    ],
    "to_sampler": [
        {
            "loss": 0.139078,
            "entropy": 5.72672,
            "kl": 0.342523,
            "ratio_mean": 0.7095,
            "clip_fraction": 0.416667,
            "logprob_gap_mean": 0.774432,
            "logprob_gap_max": 2.44442,
            "grad_norm": 2.18778,
        },
        {
            "loss": 0.186705,
            "entropy": 5.70658,
            "kl": 0.766672,
            "ratio_mean": 0.683398,
            "clip_fraction": 0.583333,
            "logprob_gap_mean": 1.31653,
            "logprob_gap_max": 3.69981,
            "grad_norm": 1.9907,
        },
    ],
    "supervised": [
        {"loss": 5.89552, "entropy": 5.72672, "nll": 5.89552, "grad_norm": 6.99343},
        {"loss": 4.01868, "entropy": 5.67685, "nll": 4.01868, "grad_norm": 9.15734},
    ],
}


@pytest.mark.parametrize("name", SEEN)
def test_two_steps_show_the_same_numbers_as_ever(name: str, tiny_model_folder: Path) -> None:
    """Losses, gradients and what is shown of them are locked for each way to train."""
    ways: dict[str, dict[str, Any]] = {
        "default": {},
        "minibatches": {"kl": {"beta": 0.1}},
        "to_sampler": {"correction": "bypass", "loss": {"clip_high": 0.3}},
        "supervised": {"name": "supervised"},
    }
    trainer = make_trainer(tiny_model_folder, row_tokens=32, algorithm=ways[name])
    batch = in_minibatches(pack(branching_sequences(), row_tokens=32), 2 if name == "minibatches" else 1)
    for seen in SEEN[name]:
        metrics = trainer.train_batch(batch)
        trainer.publish().copy_into_shared()
        assert {key: metrics[f"train/{key}"] for key in seen} == pytest.approx(seen, rel=2e-3, abs=1e-6)


def test_a_ratio_to_the_sampler_stays_one_with_several_minibatches(tiny_model_folder: Path) -> None:
    """Where weights hardly move, cispo's ratio over two minibatches is that of one step."""
    optimizer = OptimizerSettings(lr=1e-9, max_grad_norm=None)
    rows = pack(branching_sequences(), row_tokens=32)
    one, two = (
        make_trainer(tiny_model_folder, optimizer=optimizer, algorithm={"name": "cispo"}).train_batch(
            in_minibatches(rows, count)
        )
        for count in (1, 2)
    )
    expected = one["train/ratio_mean"]
    assert expected != pytest.approx(1.0, abs=0.1)
    assert two["train/ratio_mean"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("row_tokens", [40, 512])
def test_a_trainer_measures_tokens_of_turns(tiny_model_folder: Path, row_tokens: int) -> None:
    """Logprobs under the weights of the beginning, by turn and in order, whatever the rows and however far training
    went."""
    whole = [replace(each, temperatures=(1.0,) * len(each.target_idx)) for each in numbered(branching_sequences())]
    batch = Batch.of(pack(whole, row_tokens=row_tokens))
    trainer = make_trainer(tiny_model_folder, algorithm={"kl": {"beta": 0.1}})
    scores = trainer.score([each.token_ids for each in whole])
    trainer.train_batch(batch)
    trainer.publish().copy_into_shared()
    measured = trainer.measure(batch, {"reference_logprobs"})
    assert sorted(measured) == [0, 1, 2, 3]
    for number, each in enumerate(whole):
        expected = [scores[number][at - 1] for at in each.target_idx]
        assert measured[number].reference_logprobs == pytest.approx(expected, abs=1e-5)
