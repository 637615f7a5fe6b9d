"""How long `make demo` would take on this machine, from the times of two kinds of products.

Knows: what the demo computes, as counted in its runs; which product the engine uses.  Knows not: agents, data.

    seconds = training products x seconds of one x training's share beside products   (forward, and both gradients)
            + tokens in sampling x seconds of one x sampling's share beside products  (sixteen at a time)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ludus.engines.lease import release_workers
from ludus.kernels.linear import linear, unsupported_reason

_STEPS, _LIMIT_S = 80, 600.0
"""Of the recipe: it ends after so many steps, or when training has taken so long."""
# Counted in a run of 80 steps with seed 0 (batch/row_tokens, engine/prefilled_tokens and engine/sampled_tokens).
_TRAINED_TOKENS, _SAMPLING_TOKENS = 89_367, 82_300 + 39_804
# How many times as long as their products alone training and sampling took in that run: attention, norms, the
# vocabulary's softmax, the optimizer, second passes for minibatches; draws, prompts that wait, agents between turns.
_BESIDE_TRAINING, _BESIDE_SAMPLING = 2.3, 1.8
# SmolLM2-135M: layers, width, width of the gated MLP, keys and values together, vocabulary.
_LAYERS, _WIDTH, _MLP, _KV, _VOCABULARY = 30, 576, 1536, 2 * 192, 49_152
_LAYER = ((_WIDTH + _KV, _WIDTH), (_WIDTH, _WIDTH), (2 * _MLP, _WIDTH), (_WIDTH, _MLP))
_ROW_TOKENS, _AT_ONCE = 512, 16
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class DemoSpeed:
    """What was measured, and what follows for the demo."""

    product_s: float
    """The products of a row of 512 tokens with the weights of one layer: forward, and both gradients."""
    token_s: float
    """A sampled token of each of 16 answers: its products with all weights."""

    @property
    def train_s(self) -> float:
        return self.product_s * _LAYERS * _TRAINED_TOKENS / _ROW_TOKENS * _BESIDE_TRAINING

    @property
    def sample_s(self) -> float:
        return self.token_s * _SAMPLING_TOKENS / _AT_ONCE * _BESIDE_SAMPLING

    @property
    def seconds(self) -> float:
        """Of all its steps, without loading and evaluations."""
        return self.train_s + self.sample_s

    @property
    def steps(self) -> int:
        """That fit into its time."""
        return min(_STEPS, int(_STEPS * _LIMIT_S / self.seconds))

    @property
    def words(self) -> str:
        measured = (
            f"the products of a row with a layer take {self.product_s * 1e3:.1f} ms, a token of {_AT_ONCE} answers "
            f"{self.token_s * 1e3:.0f} ms"
        )
        if self.steps == _STEPS:
            return f"about {self.seconds / 60:.0f} minutes for its {_STEPS} steps: {measured}"
        return f"about {self.steps} of its {_STEPS} steps in its {_LIMIT_S / 60:.0f} minutes: {measured}"


def measure_demo(dtype: torch.dtype) -> DemoSpeed:
    """Measured in a second or two on the processor, in as many threads as torch has."""
    weights = [torch.full(shape, 0.01, dtype=dtype) for _ in range(_LAYERS) for shape in _LAYER]
    head = torch.full((_VOCABULARY, _WIDTH), 0.01, dtype=dtype)
    multiply: Callable[[Tensor, Tensor], Tensor] = functional.linear if unsupported_reason(head) else linear

    def train() -> None:
        for weight in weights[: len(_LAYER)]:
            outputs, width = weight.shape
            x, grad = (torch.full((_ROW_TOKENS, size), 0.01, dtype=dtype) for size in (width, outputs))
            _ = x @ weight.T, grad @ weight, grad.T @ x

    def sample() -> None:
        inputs = {width: torch.full((_AT_ONCE, width), 0.01, dtype=dtype) for width in (_WIDTH, _MLP)}
        for weight in (*weights, head):
            multiply(inputs[weight.shape[1]], weight)

    with torch.no_grad():
        measured = DemoSpeed(_seconds(train), _seconds(sample))
    release_workers()
    return measured


def _seconds(work: Callable[[], None]) -> float:
    """The shortest of a few rounds, after one that prepares: others' work on this machine is no part of it."""
    work()
    taken_s = []
    for _ in range(_ROUNDS):
        started_at = time.perf_counter()
        work()
        taken_s.append(time.perf_counter() - started_at)
    return min(taken_s)
