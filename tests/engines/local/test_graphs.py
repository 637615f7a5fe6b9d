"""Decode steps that are captured and replayed, with a capture that runs on the CPU: bookkeeping, not speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from ludus.engines.local.draws.eager import EagerSampling
from ludus.engines.local.graphs import Replay, choose_capture
from ludus.engines.local.kernels.base import PAGE_TOKENS, AttentionKernel, RaggedBatch, SequenceChunk
from ludus.engines.local.kernels.eager import EagerKernel
from ludus.engines.local.kernels.flex import DecodeTables, FlexKernel, block_pages, padded_size
from ludus.engines.local.pages import PagePool
from ludus.engines.local.runner import Runner
from ludus.engines.local.scheduler import Scheduler
from ludus.engines.sequence import Sequence as RunningSequence
from ludus.models.load import LoadedModel
from ludus.types import Call, Sampling

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("plain_flex")


class FakeCapture:
    """Keeps the rule of a graph: what is captured runs again on the same tensors and returns the same one."""

    def __init__(self) -> None:
        self.num_captures = 0
        self.num_replays = 0

    def __call__(self, forward: Callable[[], Tensor]) -> Replay:
        self.num_captures += 1
        result = torch.full_like(forward(), torch.nan)

        def replay() -> Tensor:
            self.num_replays += 1
            return result.copy_(forward())

        return replay


def make_runner(model: LoadedModel, kernel: AttentionKernel, capture: FakeCapture | None = None) -> Runner:
    draws = EagerSampling(model.head_weight.shape[0], CPU)
    return Runner(model, kernel, draws, num_pages=64, capture=capture)


def sampled(runner: Runner, num_calls: int, max_new_tokens: Sequence[int]) -> list[tuple[list[int], list[float]]]:
    """What calls with prompts of different lengths get, each with its own limit of tokens."""
    scheduler = Scheduler(PagePool(64, page_tokens=PAGE_TOKENS), max_batch_tokens=64, max_running=8)
    sequences = []
    for number in range(num_calls):
        prompt = tuple(range(20, 30 + 9 * number))
        call = Call(f"c{number}", "s", prompt, Sampling(max_new_tokens=max_new_tokens[number]))
        most = len(prompt) + max_new_tokens[number]
        sequence = RunningSequence(call, number, number, most, frozenset(), None, list(prompt))
        sequences.append(sequence)
        scheduler.add(sequence)
    while scheduler.running or scheduler.waiting:
        plan = scheduler.plan_step(0)
        draws = runner.run(plan)
        scheduler.commit(plan)
        for sequence, draw in draws:
            if sequence.append(draw, 0) is not None:
                scheduler.remove(sequence)
    return [(sequence.token_ids, sequence.logprobs) for sequence in sequences]


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_replayed_steps_sample_what_steps_without_graphs_sample(
    family: str, loaded: Callable[..., LoadedModel]
) -> None:
    """Sequences that come and go, windows and caps: tokens are equal, and each padded size is captured once."""
    model, capture = loaded(family), FakeCapture()
    graphs = make_runner(model, FlexKernel(CPU), capture)
    found = sampled(graphs, 5, [7, 20, 9, 12, 15])
    expected = sampled(make_runner(model, EagerKernel()), 5, [7, 20, 9, 12, 15])
    for (ids, logprobs), (expected_ids, expected_logprobs) in zip(found, expected, strict=True):
        assert ids == expected_ids
        assert logprobs == pytest.approx(expected_logprobs, abs=1e-4)
    # up to five sequences at a time: 8, 4, 2 and 1 rows
    assert capture.num_captures == 4 and capture.num_replays > 12
    num_replays = capture.num_replays
    assert sampled(graphs, 5, [7, 20, 9, 12, 15]) == found
    assert capture.num_captures == 4 and capture.num_replays == 2 * num_replays


def test_replayed_steps_see_new_weights(loaded: Callable[..., LoadedModel]) -> None:
    """Weights that a publish writes in place reach the steps that were captured before."""
    model, capture = loaded("llama"), FakeCapture()
    runner = make_runner(model, FlexKernel(CPU), capture)
    before = sampled(runner, 2, [6, 6])
    with torch.no_grad():
        model.head_weight.mul_(2.0)
    try:
        assert sampled(runner, 2, [6, 6]) != before
    finally:
        with torch.no_grad():
            model.head_weight.div_(2.0)
    assert sampled(runner, 2, [6, 6]) == before


def test_the_flex_kernel_alone_samples_the_same(loaded: Callable[..., LoadedModel]) -> None:
    """Without graphs, prompts and decoding rows of one step share the kernel."""
    model = loaded("gemma2")
    found = sampled(make_runner(model, FlexKernel(CPU)), 4, [3, 20, 9, 12])
    expected = sampled(make_runner(model, EagerKernel()), 4, [3, 20, 9, 12])
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]


def test_the_cpu_has_no_graphs() -> None:
    """Steps on the processor run as they are."""
    assert choose_capture(CPU) is None


def test_sizes_are_powers_of_two() -> None:
    """A step is filled up to the next power of two."""
    assert [padded_size(num) for num in (1, 2, 3, 4, 5, 64, 65, 256)] == [1, 2, 4, 4, 8, 64, 128, 256]


@pytest.mark.parametrize("window", [None, 1, 5, 16, 33])
def test_rows_that_decode_list_the_pages_they_see(window: int | None) -> None:
    """A kernel reads listed pages alone: each that holds a key the row sees is listed once, and no other."""
    tables = DecodeTables(4, num_pages=12, device=CPU)
    tables.mask(window)
    for lengths in ([40, 16, 17], [1, 48, 2, 33]):  # the same tensors, filled twice
        pages = iter(torch.randperm(12, generator=torch.Generator().manual_seed(1)).tolist())
        held = [[next(pages) for _ in range(-(-length // PAGE_TOKENS))] for length in lengths]
        chunks = RaggedBatch([SequenceChunk(length - 1, 1, table) for length, table in zip(lengths, held, strict=True)])
        tables.fill(chunks, torch.arange(len(lengths)))
        mask = tables.mask(window)
        for row in range(4):
            source = row if row < len(lengths) else 0  # rows that fill up repeat the first
            length = lengths[source]
            first = 0 if window is None else max(0, length - window)
            wanted = {held[source][at // PAGE_TOKENS] for at in range(first, length)}
            listed = mask.kv_indices[row, 0, 0, : int(mask.kv_num_blocks[row, 0, 0])].tolist()
            assert sorted(listed) == sorted(wanted)
            assert int(tables.slots_N[row]) == held[source][-1] * PAGE_TOKENS + (length - 1) % PAGE_TOKENS


def test_blocks_of_longer_runs_list_the_pages_they_see() -> None:
    """Runs are cut at every 128th row; a page that two runs share is listed once."""
    first, second = [*range(20)], [*range(10), *range(30, 40)]
    # block 0: positions 0..99 of the first run and 150..177 of the second; block 1: positions 178..209 of the second
    chunks = [SequenceChunk(0, 100, first), SequenceChunk(150, 60, second)]
    assert block_pages(chunks, None) == [[*range(10), 30, 31], [*range(10), 30, 31, 32, 33]]
    assert block_pages(chunks, 20) == [[*range(7), 8, 9, 30, 31], [9, 30, 31, 32, 33]]
