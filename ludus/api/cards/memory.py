"""How many bytes of a GPU each part of a run takes: sums of what the code allocates.

Knows: shapes, rows, pages, ranks.  Knows not: which of them fit together (`choose.py`), torch.
Every sum is in docs/cards.md, term by term.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from ludus.api.cards.shape import ModelShape

MomentsName = Literal["fp32", "bf16"]
GB = 10**9  # as GPUs are sold
PAGE_TOKENS = 16  # the engine's page size; a test keeps the two equal
ROW_BLOCK = 64  # rows are padded to multiples of so many tokens
# What CUDA, cuBLAS and the compiled kernels hold on a GPU before anything is computed, and NCCL's buffers.
CONTEXT_BYTES = 1 << 30
NCCL_BYTES = 1 << 30
# Share of a GPU lost to fragmentation: free blocks of the allocator that are too small for the next allocation.
GAP_SHARE = 0.04
# Logits of one chunk of the vocabulary head; with their copies in fp32 they take this many times as much.
LOGIT_BYTES = 256 << 20
LOGIT_COPIES = 7
# Rounding master weights on a GPU: 2^24 numbers at a time, with their thresholds as integers of 64 and 32 bits, and the
# numbers themselves if they come from the host's memory.
ROUNDING_BYTES = 44 << 24
# AdamW with moments in bf16: as many numbers at a time, with both moments, their ratio and the random numbers.
HALF_STEP_BYTES = 40 << 24
# So many weights at a time pass through a GPU that does not hold them: their fp32 master weights and both moments.
PASSING_WEIGHTS = 1 << 24
# Of a weight in 4 bits: blocks of 64 have a scale of 8 bits, and 256 scales one of fp32 (`models/four_bit.py`).
NF4_BYTES = 1 / 2 + 1 / 64 + 4 / (64 * 256)
# The block mask of attention: for each pair of blocks of so many tokens, whether one attends to the other, and lists.
MASK_BLOCK, MASK_BYTES = 128, 64
# What CUDA graphs keep beside the largest step; and how many rows are sampled at a time, with their copies in fp32.
GRAPH_BYTES = 256 << 20
SAMPLED_ROWS, SAMPLED_BYTES = 256, 16
# On a GPU that a vLLM and the trainer have in turns: what the vLLM keeps asleep, which are its CUDA context and graphs;
# and new weights that lie there for it to be read, in the trainer's process (`engines/vllm/cuda.py`).
WAITING_VLLM_BYTES = CONTEXT_BYTES + GRAPH_BYTES
HANDOVER_BYTES = 1 << 30


@dataclass(frozen=True)
class Job:
    """What is trained and sampled, however it is placed."""

    shape: ModelShape
    weight_bytes: int
    """Of one weight."""
    lora: tuple[int, tuple[str, ...]] | None
    """Rank and modules of the adapters. None: every weight is trained."""
    has_critic: bool
    """A second model is trained."""
    has_reference: bool
    """The initial weights are kept."""
    has_several_steps: bool
    """Several optimizer steps are made on a batch, so the weights before the batch are kept until its end."""
    max_running: int
    max_batch_tokens: int
    teacher_bytes: int = 0
    """Of a teacher model in the run's own process."""
    is_quantized: bool = False
    """Linear layers within the model's layers are kept in 4 bits."""

    @cached_property
    def num_adapted(self) -> int:
        """Weights of the adapters."""
        rank, names = self.lora or (0, ())
        sizes = (sum(self.shape.linears[name]) for name in names if name in self.shape.linears)
        return self.shape.num_layers * rank * sum(sizes)

    @property
    def num_trained(self) -> int:
        return self.shape.num_weights if self.lora is None else self.num_adapted

    @property
    def all_weight_bytes(self) -> int:
        """Of the model and its adapters, in the type that samples or in 4 bits."""
        weights = self.shape.num_weights + self.num_adapted
        if not self.is_quantized:
            return weights * self.weight_bytes
        quantized = self.shape.num_layers * sum(wide * high for wide, high in self.shape.linears.values())
        return (weights - quantized) * self.weight_bytes + int(quantized * NF4_BYTES)

    @property
    def dense_bytes(self) -> int:
        """Of the largest matrix that is kept in 4 bits while it is multiplied with, and of its scales in fp32."""
        largest = max(wide * high for wide, high in self.shape.linears.values())
        return largest * self.weight_bytes + largest // 16 if self.is_quantized else 0

    @property
    def kv_token_bytes(self) -> int:
        """Of the keys and values of one token."""
        shape = self.shape
        return shape.num_layers * shape.num_kv_heads * 2 * shape.head_dim * self.weight_bytes

    @property
    def page_bytes(self) -> int:
        """Of one cache page."""
        return PAGE_TOKENS * self.kv_token_bytes


@dataclass(frozen=True, slots=True)
class Training:
    """How one rank trains."""

    ranks: int = 1
    has_checkpointing: bool = False
    moments: MomentsName = "fp32"
    in_host: bool = False
    """Master weights and moments are in the host's memory all the time."""
    tensor: int = 1
    """Ranks that compute each layer together."""
    context: int = 1
    """Ranks over which rows are cut besides."""

    @property
    def num_parts(self) -> int:
        """Of a row."""
        return self.tensor * self.context

    @property
    def master_bytes(self) -> int:
        """Of one trained weight: its master weight and both moments."""
        return 4 + (8 if self.moments == "fp32" else 4)


def training_parts(job: Job, how: Training) -> dict[str, int]:
    """What one rank keeps on its GPU all the time, by part."""
    n, shape, b = how.ranks, job.shape, job.weight_bytes  # b: bytes of one weight
    # what every rank of a layer has whole is cut over fewer ranks
    twice = (how.tensor - 1) * uncut_weights(job)
    own = (job.num_trained + (twice if job.lora is None else twice - (how.tensor - 1) * norm_weights(shape))) // n
    trained = {"weights": (job.all_weight_bytes + b * twice) // n, "gradients, fp32": 4 * own}
    if not how.in_host:
        trained |= {"masters, fp32": 4 * own, f"moments, {how.moments}": (how.master_bytes - 4) * own}
    if job.has_reference:
        trained["reference weights"] = own * b
    if job.has_several_steps:
        trained["weights before the batch"] = own * b
    if job.has_critic:
        trained["critic"] = sum(trained.values())
    if n > 1:
        outside = shape.outside_weights
        # gathered from the forward pass to the end of the backward pass, when their gradients are gathered as well, in
        # the weights' type and in fp32; the gradient of the head is summed separately before
        gathered = outside * b + (outside * (b + 4) + 4 * shape.vocab_size * shape.width if job.lora is None else 0)
        # two layers at a time, one of them with its gradients
        layer = shape.layer_weights // how.tensor
        gathered += layer * (2 * b + (b + 4 if job.lora is None else 0))
        trained["gathered from other ranks"] = gathered
    return trained


def norm_weights(shape: ModelShape) -> int:
    """Of all layers, at most: two norms before and two behind, and those of heads."""
    return shape.num_layers * (4 * shape.width + 2 * shape.head_dim)


def uncut_weights(job: Job) -> int:
    """What each of several ranks that compute a layer together has whole: norms, and one of an adapter's matrices."""
    rank, names = job.lora or (0, ())
    linears = job.shape.linears
    whole = sum(linears[name][name in ("o_proj", "down_proj")] for name in names if name in linears)
    return norm_weights(job.shape) + job.shape.num_layers * rank * whole


def waiting_parts(job: Job, how: Training) -> dict[str, int]:
    """What stays on the GPU of `training_parts` while an engine has its turn there; the rest waits in the host's
    memory."""
    alone = training_parts(replace(job, has_critic=False), how)
    kept = {name: num_bytes for name, num_bytes in alone.items() if name in ("weights", "reference weights")}
    return {**kept, "critic": sum(kept.values())} if job.has_critic else kept


def host_bytes(job: Job, how: Training, *, in_turns: bool) -> int:
    """What all ranks keep in the host's memory, all the time or while an engine has its turn.

    in_turns: in the trainer's turn the weights of the engine are there too.
    """
    masters = (1 + job.has_critic) * how.master_bytes * job.num_trained if how.in_host or in_turns else 0
    return masters + (job.all_weight_bytes if in_turns else 0)


def most_heads(shape: ModelShape, how: Training) -> tuple[int, int]:
    """Heads of queries and of keys with which one rank attends, at most (`ludus/models/context.py`)."""
    keys, group = shape.num_kv_heads // how.tensor, shape.num_heads // shape.num_kv_heads
    choices = [each for each in range(1, group + 1) if group % each == 0 and keys * each >= how.context]
    if not choices:
        return shape.num_heads, shape.num_heads  # refused when it starts
    repeats = next((each for each in choices if keys * each % how.context == 0), choices[0])
    own = -(-keys * repeats // how.context)
    return own * (group // repeats), own


def kept_bytes(job: Job, how: Training = Training()) -> int:
    """Bytes of activations that one layer keeps of one of a rank's own tokens for the backward pass."""
    shape, t = job.shape, how.tensor
    # inputs of both norms and, of the tokens of all ranks of a layer, of all projections; queries and keys before and
    # after rotary embedding, values, the output of attention with its log-sum-exp per head in fp32; gate and up
    heads = 3 * sum(most_heads(shape, how)) * how.num_parts * shape.head_dim
    kept = job.weight_bytes * ((2 + 2 * t) * shape.width + heads + 2 * shape.inner) + 4 * shape.num_heads
    return kept + job.weight_bytes * t * (len(job.lora[1]) * job.lora[0] if job.lora else 0)


@dataclass(frozen=True, slots=True)
class RowCost:
    """The memory that a row, or a rank's part of one, takes besides `training_parts`, as a function of its length."""

    num_parts: int
    """Of a row; a rank computes one."""
    kept: int
    """Activations of a token that are kept for the backward pass."""
    passing: int
    """Of a token, temporarily, in the backward pass of one layer."""
    logits: int
    """Of a token in the vocabulary head, which handles at most `chunk` tokens at a time."""
    chunk: int
    head_gradient: int
    step: int
    """Of the optimizer step or the publish, which come after all rows."""
    dense: int
    """Of a weight that was kept in 4 bits, for a product."""

    @classmethod
    def of(cls, job: Job, how: Training) -> RowCost:
        shape, b = job.shape, job.weight_bytes
        layer = kept_bytes(job, how)
        return cls(
            num_parts=how.num_parts,
            kept=shape.num_layers * (b * shape.width if how.has_checkpointing else layer),
            # gradients of gate, up and their product, of the normed input, which all ranks of a layer have of each
            # other's tokens too, and of the residual stream
            passing=b * (7 * shape.inner + (4 + 4 * how.tensor) * shape.width)
            + (layer if how.has_checkpointing else 0),
            logits=LOGIT_COPIES * b * shape.vocab_size,
            chunk=max(1, LOGIT_BYTES // (b * shape.vocab_size)),
            head_gradient=b * shape.vocab_size * shape.width if job.lora is None else 0,
            step=step_bytes(job, how),
            dense=job.dense_bytes,
        )

    def __call__(self, num_tokens: int) -> int:
        """The peak of a row of so many tokens and of the optimizer step after it."""
        tokens = -(-num_tokens // (ROW_BLOCK * self.num_parts)) * ROW_BLOCK
        head = min(tokens, self.chunk) * self.logits + self.head_gradient
        mask = MASK_BYTES * (-(-tokens * self.num_parts // MASK_BLOCK)) ** 2
        computed = tokens * self.kept + max(tokens * self.passing, head) + mask
        return max(computed + self.dense, self.step)


def step_bytes(job: Job, how: Training) -> int:
    """What the optimizer step and the publish take temporarily; they handle one weight tensor at a time."""
    shape = job.shape
    if job.lora is not None:
        rank, names = job.lora
        largest = rank * max((max(shape.linears[name]) for name in names if name in shape.linears), default=0)
    else:
        largest = shape.width * max(shape.vocab_size, shape.inner)
    largest = -(-largest // how.ranks)
    rounding = ROUNDING_BYTES + job.weight_bytes * largest
    updating = HALF_STEP_BYTES if how.moments == "bf16" else 0
    updating += how.master_bytes * PASSING_WEIGHTS if how.in_host else 0
    return max(rounding, updating)


def sampling_parts(job: Job, num_pages: int) -> dict[str, int]:
    """What our engine takes besides the weights, by part."""
    shape, b = job.shape, job.weight_bytes
    heads = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    step = job.max_batch_tokens * b * (4 * shape.inner + 8 * shape.width + 4 * heads)
    step += SAMPLED_ROWS * SAMPLED_BYTES * shape.vocab_size + GRAPH_BYTES + job.dense_bytes
    return {"pages of keys and values": num_pages * job.page_bytes, "steps of the engine": step}


def reserved(card_bytes: int, *, ranks: int = 1) -> Mapping[str, int]:
    """What is left free on a GPU for libraries and fragmentation."""
    context = CONTEXT_BYTES + (NCCL_BYTES if ranks > 1 else 0)
    return {"CUDA, libraries": context, "gaps of the allocator": int(card_bytes * GAP_SHARE)}
