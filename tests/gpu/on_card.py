"""What runs on a CUDA card, held against what the same code computes on the processor: `make test-gpu`.

Each test says which part it is; they stand in the order in which a new card should be trusted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ludus.algorithms.pack import Batch, TrainSequence, pack
from ludus.algorithms.settings import AlgorithmSettings
from ludus.engines.lease import ComputeLease
from ludus.engines.local.draws.base import SamplingRequest, uniform
from ludus.engines.local.draws.eager import EagerSampling
from ludus.engines.local.graphs import choose_capture
from ludus.engines.local.kernels.base import AttentionKernel
from ludus.engines.local.kernels.eager import EagerKernel
from ludus.engines.local.kernels.triton import TritonKernel
from ludus.engines.local.runner import Runner
from ludus.errors import BackendError
from ludus.kernels.library import AttentionRule
from ludus.models.flex_tree import TreeMasks, flex_tree_attention
from ludus.models.load import LoadedModel, load_model
from ludus.models.rowwise import TorchRowwise
from ludus.models.settings import LoraSettings, ModelSettings
from ludus.models.tree import TreePlan, subtree_ends
from ludus.trainer.adamw import AdamWStep, torch_half_step
from ludus.trainer.head import VocabularyHead
from ludus.trainer.rounding import Rounding
from ludus.trainer.settings import OptimizerSettings, TrainerSettings
from ludus.trainer.step import ModelTrainer
from ludus.types import Sampling
from tests.engines.local.steps import make_runner as a_runner
from tests.engines.local.steps import sampled
from tests.models.test_flex_tree import random_row
from tests.models.test_four_bit import quantized
from tests.models.test_rowwise import TOLERANCE, assert_same, results
from tests.trainer.teams import Team, relative_difference, sharded, weights, whole
from tests.trainer.teams import batch as team_batch

pytestmark = [
    pytest.mark.timeout(300),
    # torch's compiler looks at what it compiles, with a warning of torch's own
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
CARD, CPU = torch.device("cuda"), torch.device("cpu")
FAMILIES = ("llama", "qwen3", "gemma2")
NF4: dict[str, Any] = {"quantization": "nf4", "lora": LoraSettings(rank=4, alpha=8)}


def on(device: torch.device, *tensors: Tensor) -> list[Tensor]:
    return [each.to(device) for each in tensors]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_norms_gates_and_rotary_positions(dtype: torch.dtype) -> None:
    """Forward and backward as torch's operations on the processor."""
    from ludus.kernels.triton_rowwise import TritonRowwise  # the list of these tests is made without triton too

    assert_same(results(TritonRowwise(), dtype, "cuda"), results(TorchRowwise(), dtype), dtype)


@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize(("num_tokens", "window", "softcap"), [(40, None, None), (700, 50, None), (1024, 20, 3.0)])
def test_tree_attention_and_its_gradients(
    num_tokens: int, window: int | None, softcap: float | None, has_sinks: bool
) -> None:
    """Outputs and gradients of the fused kernel are those of the processor's, in fp32 within TF32's products."""
    parents, positions = random_row(num_tokens)
    generator = torch.Generator().manual_seed(num_tokens)
    shapes = [(1, 4, num_tokens, 64), (1, 2, num_tokens, 64), (1, 2, num_tokens, 64), (1, num_tokens, 4, 64)]
    q, k, v, grad = (torch.randn(shape, generator=generator) for shape in shapes)
    sinks = [torch.tensor([-1.0, 3.0, 0.0, 20.0])] if has_sinks else []
    inputs = [each.requires_grad_() for each in (q, k, v, *sinks)]
    rule = AttentionRule(0.125, window, softcap, *inputs[3:])
    expected = TreePlan(parents, positions).attend(0, q, k, v, rule)
    expected_grads = torch.autograd.grad(expected, inputs, grad)
    card = [each.detach().to(CARD).requires_grad_() for each in inputs]
    masks = TreeMasks(subtree_ends(parents).to(CARD), torch.tensor(positions, device=CARD))
    found = flex_tree_attention(*card[:3], masks, AttentionRule(0.125, window, softcap, *card[3:]))
    torch.testing.assert_close(found.cpu(), expected, atol=5e-3, rtol=5e-3)
    for ours, reference in zip(torch.autograd.grad(found, card, grad.to(CARD)), expected_grads, strict=True):
        torch.testing.assert_close(ours.cpu(), reference, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_the_vocabulary_head(softcap: float | None) -> None:
    """Log-probabilities, entropies and both gradients are the processor's."""
    generator = torch.Generator().manual_seed(3)
    hidden, weight = torch.randn(70, 64, generator=generator), torch.randn(1000, 64, generator=generator)
    targets, temperatures = torch.arange(70) * 7, torch.linspace(0.5, 1.5, 70)
    results = []
    for device in (CPU, CARD):
        own = on(device, hidden, weight, targets, temperatures)
        head = VocabularyHead(own[1], softcap=softcap)
        sink = torch.zeros_like(own[1])
        gradient = head.differentiate(
            own[0], own[2], own[3], lambda chunk, logs, entropies: (torch.ones_like(logs), None), sink_VD=sink
        )
        results.append([each.cpu() for each in (*head(own[0], own[2], own[3]), gradient, sink)])
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours, reference, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_published_weights_have_the_same_bits(dtype: torch.dtype) -> None:
    """Dithered rounding is a function of number, name, place and seed, wherever it is computed."""
    master = torch.randn(300_001, generator=torch.Generator().manual_seed(5)) * 0.1
    rounded = []
    for device in (CPU, CARD):
        into = torch.empty(master.shape, dtype=dtype, device=device)
        Rounding("dither", 7, device).copy(master.to(device), into, name="w", first=11)
        rounded.append(into.cpu())
    assert torch.equal(*rounded)


def test_an_optimizer_step_with_short_moments() -> None:
    """AdamW with moments in bf16 moves weights as on the processor, but for the last bits of products."""
    generator = torch.Generator().manual_seed(6)
    weight, gradient = torch.randn(500, 300, generator=generator), torch.randn(500, 300, generator=generator)
    step = AdamWStep(1e-3, (0.9, 0.95), 1e-8, 0.01, 1, 77)
    results = []
    for device in (CPU, CARD):
        own_weight, own_gradient = on(device, weight.clone(), gradient)
        first = torch.zeros_like(own_weight, dtype=torch.bfloat16)
        second = torch.zeros_like(first)
        torch_half_step(own_weight, own_gradient, first, second, step)
        results.append([each.float().cpu() for each in (own_weight, first, second)])
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-6, rtol=1e-2)


def test_draws() -> None:
    """The same numbers draw the same tokens: plain, cut, penalised, greedy."""
    logits = torch.randn(130, 5000, generator=torch.Generator().manual_seed(8)) * 3
    kinds = (
        Sampling(), Sampling(temperature=0.7), Sampling(top_p=0.9), Sampling(top_k=20), Sampling(min_p=0.05),
        Sampling(temperature=0.0), Sampling(repetition_penalty=1.3, frequency_penalty=0.5), Sampling(top_logprobs=3),
        Sampling(logit_bias=((5, 3.0),)),
    )  # fmt: skip
    requests = [SamplingRequest(kinds[row % len(kinds)], uniform(3, row), (1, 2, 3, 2), 2) for row in range(130)]
    found = EagerSampling(5000, CARD).draw(logits.to(CARD), requests, softcap=None)
    expected = EagerSampling(5000, CPU).draw(logits, requests, softcap=None)
    assert [each.token_id for each in found] == [each.token_id for each in expected]
    assert [each.logprob for each in found] == pytest.approx([each.logprob for each in expected], abs=1e-4)
    assert [each.kept_ids for each in found] == [each.kept_ids for each in expected]


@pytest.fixture(scope="session")
def models(tiny_models: Callable[[str], Path]) -> Callable[..., LoadedModel]:
    """A tiny model by family, device and type."""
    built: dict[tuple[str, str, str], LoadedModel] = {}

    def load(name: str, device: str, dtype: str = "float32") -> LoadedModel:
        key = (name, device, dtype)
        if key not in built:
            built[key] = load_model(ModelSettings(path=str(tiny_models(name)), device=device, dtype=dtype))
        return built[key]

    return load


def make_runner(model: LoadedModel, kernel: AttentionKernel, *, has_graphs: bool = False) -> Runner:
    return a_runner(model, kernel, choose_capture(model.head_weight.device) if has_graphs else None)


@pytest.mark.parametrize("family", FAMILIES)
def test_sampling(family: str, models: Callable[..., LoadedModel]) -> None:
    """The paged kernel samples what the processor samples; a second time as well."""
    assert_sampled_alike(models, family, has_graphs=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_sampling_by_graphs(family: str, models: Callable[..., LoadedModel]) -> None:
    """The same with its steps captured as graphs."""
    assert_sampled_alike(models, family, has_graphs=True)


def assert_sampled_alike(models: Callable[..., LoadedModel], family: str, *, has_graphs: bool) -> None:
    limits = [7, 20, 9, 12, 15]
    expected = sampled(make_runner(models(family, "cpu"), EagerKernel()), limits)
    runner = make_runner(models(family, "cuda"), TritonKernel(CARD), has_graphs=has_graphs)
    for _ in range(2):
        found = sampled(runner, limits)
        for (ids, logprobs), (expected_ids, expected_logprobs) in zip(found, expected, strict=True):
            assert ids == expected_ids
            assert logprobs == pytest.approx(expected_logprobs, abs=1e-2)


def trained_sequences() -> list[TrainSequence]:
    """Siblings that share a prompt, share turns and part; and one that shares nothing."""
    prompt, a, b, c = list(range(5, 25)), [30, 31, 32], [40, 41], [30, 31, 50, 51, 52]

    def one(token_ids: Sequence[int], target_idx: Sequence[int], advantage: float) -> TrainSequence:
        count = len(target_idx)
        return TrainSequence(
            token_ids=tuple(token_ids), target_idx=tuple(target_idx), advantages=(advantage,) * count,
            weights=(1 / 24,) * count, logprobs=tuple(-5.0 - 0.1 * index for index in range(count)),
            versions=(0,) * count, temperatures=(1.0,) * count,
        )  # fmt: skip

    return [
        one(prompt + a + [60, 61] + b, (20, 21, 22, 25, 26), 1.0),
        one(prompt + a + [62] + c, (20, 21, 22, 24, 25, 26, 27, 28), -0.5),
        one(prompt + c, (20, 21, 22, 23, 24), 0.7),
        one(list(range(100, 130)), (3, 10, 15, 20, 28, 29), -1.2),
    ]


def make_trainer(folder: Path, device: str, **settings: Any) -> ModelTrainer:
    model_settings = ModelSettings(path=str(folder), device=device, **settings.pop("model", {}))
    optimizer = OptimizerSettings(lr=1e-3, **settings.pop("optimizer", {}))
    chosen = TrainerSettings(optimizer=optimizer, **settings)
    return ModelTrainer(load_model(model_settings), chosen, AlgorithmSettings(), lease=ComputeLease())


def moved(trainer: ModelTrainer) -> dict[str, Tensor]:
    """Masters after three batches, each published."""
    batch = Batch.of(pack(trained_sequences(), row_tokens=512), version=0)
    for _ in range(3):
        trainer.train_batch(batch)
        trainer.publish().copy_into_shared()
    return {name: master.float().cpu() for name, master in trainer.optimizer.masters.items()}


@pytest.mark.parametrize(
    "settings",
    [
        {"model": {"dtype": "float32"}},
        {"model": {"dtype": "float32", "lora": LoraSettings(rank=4, alpha=8)}},
        {"model": {"dtype": "bfloat16"}, "optimizer": {"moments": "bf16"}},
        {"model": {"dtype": "float16"}},
        {"model": {"dtype": "bfloat16"}, "activation_checkpointing": True},
        pytest.param({"model": {"dtype": "bfloat16", **NF4}}, marks=quantized),
    ],
    ids=["fp32", "lora", "bf16-short-moments", "fp16", "bf16-recomputed", "nf4"],
)
def test_training(settings: dict[str, Any], tiny_models: Callable[[str], Path]) -> None:
    """Three steps move the masters as on the processor, within what the type's products differ."""
    folder = tiny_models("llama")
    found, expected = (moved(make_trainer(folder, device, **settings)) for device in ("cuda", "cpu"))
    begun = {name: weight.detach().float() for name, weight in load_model(
        ModelSettings(path=str(folder), device="cpu", **{**settings["model"], "dtype": "float32"})
    ).trainable.items()}  # fmt: skip
    ours = torch.cat([(found[name] - begun[name]).flatten() for name in sorted(found)])
    reference = torch.cat([(expected[name] - begun[name]).flatten() for name in sorted(found)])
    cosine = float(torch.nn.functional.cosine_similarity(ours, reference, dim=0))
    assert cosine > 0.97, f"the movement of the masters has a cosine of {cosine:.4f} with the processor's"


def test_a_resumed_trainer_goes_on_to_the_bit(tiny_models: Callable[[str], Path], tmp_path: Path) -> None:
    """Masters and moments from a checkpoint train on as if nothing had been saved."""
    batch = Batch.of(pack(trained_sequences(), row_tokens=512), version=0)
    straight = make_trainer(tiny_models("llama"), "cuda", model={"dtype": "bfloat16"})
    for _ in range(2):
        straight.train_batch(batch)
        straight.publish().copy_into_shared()
    tmp_path.joinpath("saved").mkdir()
    straight.save(tmp_path / "saved")
    resumed = make_trainer(tiny_models("llama"), "cuda", model={"dtype": "bfloat16"})
    resumed.load(tmp_path / "saved")
    for trainer in (straight, resumed):
        trainer.train_batch(batch)
        trainer.publish().copy_into_shared()
    for name, parameter in straight.model.trainable.items():
        assert torch.equal(parameter, resumed.model.trainable[name]), name


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
def test_a_trainer_that_leaves_the_card_between_batches_learns_the_same(
    moments: str, tiny_models: Callable[[str], Path]
) -> None:
    """To the bit; between batches the card holds its weights and no more, and the rest lies in pinned memory."""
    ends = []
    for is_offloaded in (False, True):
        how = {"model": {"dtype": "bfloat16"}, "optimizer": {"moments": moments}}
        trainer = make_trainer(tiny_models("llama"), "cuda", **how)
        if is_offloaded:
            trainer.offload()
        ends.append(moved(trainer))
        masters = trainer.optimizer.masters.values()
        assert all(each.is_cuda != is_offloaded and each.is_pinned() == is_offloaded for each in masters)
        if is_offloaded:
            torch.cuda.reset_peak_memory_stats()
            allocated = torch.cuda.memory_allocated()
            trainer.train_batch(Batch.of(pack(trained_sequences(), row_tokens=512), version=3))
            num_trained = sum(each.numel() for each in masters)
            assert torch.cuda.max_memory_allocated() - allocated >= 12 * num_trained
            assert torch.cuda.memory_allocated() - allocated < num_trained
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
def test_an_optimizer_in_the_hosts_memory_learns_the_same(moments: str, tiny_models: Callable[[str], Path]) -> None:
    """To the bit: masters and moments pass through the card, and lie in pinned memory."""
    ends = []
    for offload in ("none", "optimizer"):
        how = {"model": {"dtype": "bfloat16"}, "optimizer": {"moments": moments}, "offload": offload}
        trainer = make_trainer(tiny_models("llama"), "cuda", **how)
        ends.append(moved(trainer))
        kept = [*trainer.optimizer.masters.values()]
        kept += [own["exp_avg"] for own in trainer.optimizer.state()["moments"].values()]
        assert all(each.is_pinned() if offload == "optimizer" else each.is_cuda for each in kept)
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_branching_row_sums_to_the_same_bits(tiny_models: Callable[[str], Path]) -> None:
    """Two hundred answers branch off one prompt and repeat a few tokens; nothing is added in whatever order threads
    come."""
    sequences = [
        TrainSequence.plain((*range(5, 25), *(30 + number % 7 for _ in range(9))), range(20, 29))
        for number in range(200)
    ]
    trainer = make_trainer(tiny_models("llama"), "cuda", model={"dtype": "bfloat16"})
    found = []
    for _ in range(3):
        trainer.forward_backward(Batch.of(pack(sequences, row_tokens=4096), version=0))
        found.append({name: each.clone() for name, each in trainer.optimizer.gradients().items()})
        trainer.forget_gradients()
    for again in found[1:]:
        for name, gradient in found[0].items():
            assert torch.equal(gradient, again[name]), name


@pytest.mark.parametrize("more", [{}, pytest.param(NF4, marks=quantized)], ids=["plain", "nf4"])
def test_the_engine_samples_what_the_trainer_scores(more: dict[str, Any], tiny_models: Callable[[str], Path]) -> None:
    """Logprobs of sampled tokens beside those of a training forward pass, in bf16."""
    model = load_model(ModelSettings(path=str(tiny_models("llama")), device="cuda", dtype="bfloat16", **more))
    trainer = ModelTrainer(model, TrainerSettings(), lease=ComputeLease())
    gaps: list[float] = []
    for ids, logprobs in sampled(make_runner(model, TritonKernel(CARD), has_graphs=True), [20, 20, 20]):
        scored = trainer.score([ids])[0][-len(logprobs) :]
        gaps += [abs(one - other) for one, other in zip(scored, logprobs, strict=True)]
    assert max(gaps) < 0.2 and sum(gaps) / len(gaps) < 0.02, f"max {max(gaps)}, mean {sum(gaps) / len(gaps)}"


READER = """
import sys, types, json, torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor
base = types.ModuleType("vllm.distributed.weight_transfer.ipc_engine")  # of which the reading needs nothing
base.IPCWeightTransferEngine = base.IPCWeightTransferUpdateInfo = object
sys.modules[base.__name__] = base
for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer"):
    sys.modules[name] = types.ModuleType(name)
from ludus_vllm.ipc import _arguments
told = json.loads(sys.stdin.read())
for name, handle in zip(told["names"], told["handles"]):
    print(name, float(rebuild_cuda_tensor(*_arguments(handle)).float().sum()))
"""


def test_tensors_are_shared_with_another_process() -> None:
    """What CUDA's handles describe is read by a second process on the same card."""
    from ludus.engines.vllm.cuda import _shared

    tensors = [("a", torch.arange(1000, device=CARD, dtype=torch.bfloat16)), ("b", torch.ones(7, 5, device=CARD))]
    told = _shared(tensors)
    done = subprocess.run(
        [sys.executable, "-c", READER], input=json.dumps(told), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    expected = [f"{name} {float(each.float().sum())}" for name, each in tensors]
    assert done.stdout.split("\n")[:2] == expected


def test_a_group_of_one_over_nccl() -> None:
    """The library is found, a group is made, and a broadcast leaves the tensor as it was."""
    from ludus.engines.nccl import NcclGroup, load_library, new_unique_id

    library = load_library()
    group = NcclGroup(library, new_unique_id(library), 1, CARD)
    tensor = torch.arange(10, device=CARD, dtype=torch.bfloat16)
    group.broadcast(tensor)
    assert tensor.tolist() == list(range(10))
    group.abort()


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = Team()
    yield team
    team.end()


several = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two cards")


@several
@pytest.mark.parametrize("split", [{}, {"context": 2}, {"tensor": 2}], ids=["rows", "context", "tensor"])
def test_two_cards_compute_the_gradient_of_one(
    split: dict[str, int], team: Team, tiny_models: Callable[[str], Path]
) -> None:
    """Over NCCL; and after two batches, each of which moved the weights, they have the weights of one."""
    folder = tiny_models("llama")
    alone = whole(folder)
    alone.forward_backward(team_batch(row_tokens=200))
    expected = dict(alone.optimizer.gradients())
    with sharded(team, folder, 2, split=split, device="cuda") as trainer:
        trainer.forward_backward(team_batch(row_tokens=200))
        found = {name: trainer.gradient(name).to(CARD) for name in expected}
        assert relative_difference(found, expected) <= 1e-3
        for each in (alone, trainer):
            each.forget_gradients()
            for _ in range(2):
                each.train_batch(team_batch(row_tokens=200))
                each.publish().copy_into_shared()
        ours, reference = ({name: value.cpu() for name, value in weights(each).items()} for each in (trainer, alone))
        assert relative_difference(ours, reference) <= 1e-2


@several
def test_a_rank_that_hangs_is_broken_off(team: Team, tiny_models: Callable[[str], Path]) -> None:
    """Whoever waits for it in a sum over NCCL is let go, long before that takes its time; a new team meets."""
    with sharded(team, tiny_models("llama"), 2, device="cuda") as trainer:
        trainer.train_batch(team_batch())
        hanging = team.processes.pop(0)
        os.kill(hanging.pid, signal.SIGSTOP)
        threading.Timer(3.0, trainer._ranks.abort).start()
        with pytest.raises(BackendError, match="the connection to one of them was lost"):
            trainer.train_batch(team_batch())
        hanging.kill()
        hanging.wait()
    with sharded(team, tiny_models("llama"), 2, device="cuda") as trainer:
        trainer.train_batch(team_batch())
