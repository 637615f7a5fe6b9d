"""A few calls carried out step by step, without an engine around them."""

from __future__ import annotations

from collections.abc import Sequence

from ludus.engines.local.draws.eager import EagerSampling
from ludus.engines.local.graphs import Capture
from ludus.engines.local.kernels.base import PAGE_TOKENS, AttentionKernel
from ludus.engines.local.pages import PagePool
from ludus.engines.local.runner import Runner
from ludus.engines.local.scheduler import Scheduler
from ludus.engines.sequence import Sequence as RunningSequence
from ludus.models.load import LoadedModel
from ludus.types import Call, Sampling


def make_runner(model: LoadedModel, kernel: AttentionKernel, capture: Capture | None = None) -> Runner:
    draws = EagerSampling(model.head_weight.shape[0], model.head_weight.device)
    return Runner(model, kernel, draws, num_pages=64, max_running=8, capture=capture)


def sampled(runner: Runner, max_new_tokens: Sequence[int]) -> list[tuple[list[int], list[float]]]:
    """What calls with prompts of different lengths get, each with its own limit of tokens."""
    scheduler = Scheduler(PagePool(64, page_tokens=PAGE_TOKENS), max_batch_tokens=64, max_running=8)
    sequences = []
    for number, limit in enumerate(max_new_tokens):
        prompt = tuple(range(20, 30 + 9 * number))
        call = Call(f"c{number}", "s", prompt, Sampling(max_new_tokens=limit))
        sequence = RunningSequence(call, number, number, len(prompt) + limit, frozenset(), None, list(prompt))
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
