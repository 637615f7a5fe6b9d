"""Upper bounds of this machine's speed, measured at the same time as the results that are compared with them.

Knows: matrix products, copies, cards.  Knows not: engines, trainers.
V: rows of a weight, K: its columns.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ludus.engines.lease import release_workers
from ludus.engines.local.graphs import choose_capture
from ludus.models.load import LoadedModel

# Long enough to average out short stalls of a virtual machine, short enough that the machine's speed does not change.
_LEAST_S = 0.5
# Calls of less than ten milliseconds need no more than these to average out.
_MOST_CALLS = 50
# So many calls are queued on a card before it is waited for, so that it is not idle between them.
_CARD_CALLS = 10
# A card needs larger products to be busy everywhere; 2,048 takes it 20 microseconds.
_MATRIX_SIZE, _CARD_MATRIX_SIZE = 2048, 8192


def matrix_flops_per_s(device: torch.device) -> float:
    """Floating-point operations per second of a square bf16 matrix product, two for each multiply-add."""
    size = _MATRIX_SIZE if device.type == "cpu" else _CARD_MATRIX_SIZE
    a, b = torch.randn(2, size, size, device=device).bfloat16()
    return 2 * size**3 / seconds(lambda: a @ b, device)


def linear_tokens_per_s(model: LoadedModel, num_tokens: int) -> float:
    """Tokens per second of a decoding step that consists only of the model's linear layers, unfused, and the head.

    On a card a CUDA graph, as the engine's steps are: launching one product after the other takes longer.
    """
    weights = linear_weights(model)
    head = model.head_weight
    widths = {weight_VK.shape[1] for weight_VK in weights}
    inputs = {width: torch.randn(num_tokens, width, device=head.device).to(head.dtype) for width in widths}

    def step() -> Tensor:
        output = head
        for weight_VK in weights:
            output = nn.functional.linear(inputs[weight_VK.shape[1]], weight_VK)
        return output

    capture = choose_capture(head.device)
    with torch.inference_mode():
        return num_tokens / seconds(step if capture is None else capture(step), head.device)


def linear_weights(model: LoadedModel) -> list[Tensor]:
    """The weights by which every token is multiplied, in order: those of the layers, then the head's."""
    layers = [part for layer in model.layers for part in layer.modules() if isinstance(part, nn.Linear)]
    return [part.weight.detach() for part in layers] + [model.head_weight.detach()]


def linear_flops(model: LoadedModel) -> int:
    """Floating-point operations of one decoded token in linear layers and head."""
    return 2 * sum(weight_VK.numel() for weight_VK in linear_weights(model))


def decoding_bytes(model: LoadedModel, num_cached_tokens: int) -> int:
    """Bytes that a decoding step must read: each weight of linear layers and head once, keys and values of all
    requests.

    num_cached_tokens: total over all requests.
    """
    config = model.config
    kv_values = 2 * config.num_layers * config.num_kv_heads * config.head_dim * num_cached_tokens
    weights = sum(weight_VK.nbytes for weight_VK in linear_weights(model))
    return weights + kv_values * model.head_weight.itemsize


def copied_bytes_per_s(num_bytes: int, device: torch.device) -> float:
    """Bytes per second, read and written, of a copy that moves `num_bytes` in total."""
    source = torch.zeros(num_bytes // 2, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return num_bytes / seconds(lambda: target.copy_(source), device)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Mean seconds of one call, over half a second of calls at most, after two warm-up calls."""
    work()
    work()
    finish(device)
    at_once = 1 if device.type == "cpu" else _CARD_CALLS
    num_calls, taken_s, started_at = 0, 0.0, time.perf_counter()
    while taken_s < _LEAST_S and num_calls < _MOST_CALLS * at_once:
        for _ in range(at_once):
            work()
        num_calls += at_once
        finish(device)
        taken_s = time.perf_counter() - started_at
    release_workers()  # otherwise they would compete for cores with the engine that is measured next
    return taken_s / num_calls


def finish(device: torch.device) -> None:
    """Wait until a card has finished its queued work; on the CPU, work is finished when a call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
