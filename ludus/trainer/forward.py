"""The forward and backward pass of a packed row: log-probabilities of its targets, with or without gradients.

Knows: rows, the model's backbone and head, that others may wait for the lease.  Knows not: losses, optimizers, leases.

Rows are padded to whole blocks of tokens and targets, because oneDNN keeps a compiled kernel for every size it has
seen: without padding each step of a run took some 15 MB more, and the time to compile. The padding is a separate tree
without targets; it changes no result and no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ludus.algorithms.pack import PackedRow
from ludus.algorithms.share import WHOLE_ROW, RowPart
from ludus.kernels.library import AttentionRule
from ludus.models.attention import AttentionPlan
from ludus.models.load import LoadedModel
from ludus.models.tree import TreePlan
from ludus.text.constraint import Constraints
from ludus.trainer.fixed_order import take_rows
from ludus.trainer.head import AskSlopes, VocabularyHead
from ludus.trainer.processed_targets import ProcessedTargets

# The padding is half a block on average: for targets, one cheap product.
TARGET_BLOCK = 32
GiveWay = Callable[[], None]
"""Gives others that wait for the lease a turn."""
Beside = Callable[[Tensor], Tensor]
"""(hidden states) -> the gradient by them of a term added to the loss; both of shape (M, D), the latter fp32."""


@dataclass(frozen=True, slots=True)
class RowTensors:
    """A packed row, or a part of one, on the model's device. Shapes: (N,) its targets; with padding, (S,) its tokens,
    (M,) its targets; (P,) the tokens of all parts that are computed together, else S."""

    plan: TreePlan
    """Of the whole row."""
    token_ids_S: Tensor
    positions_P: Tensor
    source_idx_M: Tensor
    target_ids_M: Tensor
    temperatures_M: Tensor
    processed: ProcessedTargets | None
    """None: every target was drawn from the model's own distribution."""
    advantages: Tensor
    weights: Tensor
    sampled_logprobs: Tensor
    origins: Tensor | None
    """None: every target was sampled for this batch."""

    @classmethod
    def of(
        cls,
        row: PackedRow,
        device: torch.device,
        constraints: Constraints | None = None,
        part: RowPart = WHOLE_ROW,
    ) -> RowTensors:
        """constraints: compiles grammars as the sampler does. None: no target needs one.

        part: which the targets of `row` are in, and whose tokens are computed.
        """
        num_tokens, more_targets = len(row.token_ids), -len(row.target_ids) % TARGET_BLOCK
        span = part.span(num_tokens)
        filling = range((span.stop - span.start) * part.count - num_tokens)
        positions = (*row.positions, *filling)
        chain = tuple(-1 if i == 0 else num_tokens + i - 1 for i in filling)
        sources = [source - span.start for source in row.source_idx]
        return cls(
            plan=TreePlan((*row.parents, *chain), positions),
            token_ids_S=torch.tensor((*row.token_ids, *(0 for _ in filling))[span], device=device),
            positions_P=torch.tensor(positions[part.joint_span(num_tokens)], device=device),
            source_idx_M=torch.tensor([*sources, *[0] * more_targets], dtype=torch.int64, device=device),
            target_ids_M=torch.tensor(row.target_ids + (0,) * more_targets, dtype=torch.int64, device=device),
            temperatures_M=torch.tensor(row.temperatures + (1.0,) * more_targets, dtype=torch.float32, device=device),
            processed=ProcessedTargets.of(row, device, constraints),
            advantages=torch.tensor(row.advantages, dtype=torch.float32, device=device),
            weights=torch.tensor(row.weights, dtype=torch.float32, device=device),
            sampled_logprobs=torch.tensor(row.logprobs, dtype=torch.float32, device=device),
            origins=torch.tensor(row.origins, device=device) if row.origins else None,
        )


class TargetStates:
    """Computes the hidden states that a row's targets are predicted from, and the backward pass from them, for any
    head."""

    def __init__(self, model: LoadedModel, give_way: GiveWay | None = None) -> None:
        """give_way: called between layers while gradients are computed on the CPU. None: nobody waits for it."""
        self.model = model
        is_shared = model.gathering is None and model.head_weight.device.type == "cpu"
        self.give_way = give_way if is_shared else None

    def __call__(self, row: RowTensors) -> Tensor:
        """The hidden states, shape (M, D). If the model is sharded, its head is gathered from now on."""
        plan = row.plan if self.give_way is None else _GivingWay(row.plan, self.give_way)
        hidden_SD = self.model.backbone(row.token_ids_S[None], row.positions_P[None], plan)[0]
        return take_rows(hidden_SD, row.source_idx_M)

    def differentiate(
        self, row: RowTensors, through_head: Callable[[Tensor, Tensor | None], Tensor], *, sink_VD: Tensor | None = None
    ) -> None:
        """Compute the gradient of every trained parameter.

        through_head: (hidden states, sink of the head's gradient) -> the loss's gradient by the hidden states.
        sink_VD: fp32 tensor that the head's gradient is added to. None: the head is not trained, or it is sharded, and
        its gradient is handled as those of other parameters.
        """
        hidden_MD = self(row)
        weight = self.model.head_weight
        is_cut = self.model.gathering is not None and weight.requires_grad
        if is_cut:
            sink_VD = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        grad_MD = through_head(hidden_MD.detach(), sink_VD)
        if is_cut and sink_VD is not None:
            weight.grad = sink_VD.to(weight.dtype)
            del sink_VD  # twice as large, and the layers' activations and gradients come beside it
        torch.autograd.backward(hidden_MD, grad_MD)


@dataclass(frozen=True, slots=True)
class _GivingWay:
    """An attention plan that gives way between two layers, in the forward and in the backward pass.

    Without gradients it does not: the parameters may then be those of the reference.
    """

    plan: AttentionPlan
    give_way: GiveWay

    def attend(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        if q.requires_grad:
            self.give_way()
            q.register_hook(lambda _: self.give_way())  # type: ignore[no-untyped-call]
        return self.plan.attend(layer_idx, q, k, v, rule)


class RowForward:
    """The forward and backward pass of rows through one model with its vocabulary head."""

    def __init__(
        self, model: LoadedModel, constraints: Constraints | None = None, give_way: GiveWay | None = None
    ) -> None:
        """constraints: for answers under grammars. None: there are none.  give_way: as for `TargetStates`."""
        self._states = TargetStates(model, give_way)
        self._constraints = constraints
        self._device = model.head_weight.device
        self.head = VocabularyHead(model.head_weight, softcap=model.config.logit_softcap)

    def tensors(self, row: PackedRow) -> RowTensors:
        """`row`, with this process's targets, on the model's device."""
        return RowTensors.of(row, self._device, self._constraints, self._states.model.part)

    @torch.no_grad()
    def __call__(self, row: RowTensors) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of every target, fp32 of shape (N,), without gradients."""
        hidden_MD = self._states(row)
        self._take_head()
        logprobs_M, entropies_M = self.head(hidden_MD, row.target_ids_M, row.temperatures_M, row.processed)
        self._states.model.release()
        num_targets = len(row.weights)
        return logprobs_M[:num_targets], entropies_M[:num_targets]

    @torch.no_grad()
    def logit_gradients(self, row: RowTensors) -> Tensor:
        """`VocabularyHead.logit_gradients` of every target, shape (N,)."""
        hidden_MD = self._states(row)
        self._take_head()
        lengths_M = self.head.logit_gradients(hidden_MD, row.target_ids_M, row.temperatures_M, row.processed)
        self._states.model.release()
        return lengths_M[: len(row.weights)]

    def differentiate(
        self, row: RowTensors, slopes: AskSlopes, *, sink_VD: Tensor | None = None, beside: Beside | None = None
    ) -> None:
        """Compute the gradient of every trained parameter. `slopes` is called for some targets at a time.

        sink_VD: as for `TargetStates.differentiate`.  beside: a further term of the loss. None: there is none.
        """
        num_targets = len(row.weights)

        def padded(chunk: slice, logprobs_C: Tensor, entropies_C: Tensor) -> tuple[Tensor, Tensor | None]:
            count = max(0, min(chunk.stop, num_targets) - chunk.start)
            filling = (0, len(logprobs_C) - count)
            if count == 0:
                return torch.zeros_like(logprobs_C), None
            if self._states.give_way is not None:
                self._states.give_way()
            targets = slice(chunk.start, chunk.start + count)
            slopes_C, by_entropy_C = slopes(targets, logprobs_C[:count], entropies_C[:count])
            return pad(slopes_C, filling), None if by_entropy_C is None else pad(by_entropy_C, filling)

        def through_head(hidden_MD: Tensor, sink_VD: Tensor | None) -> Tensor:
            self._take_head()
            drawn = (row.target_ids_M, row.temperatures_M)
            grad_MD = self.head.differentiate(hidden_MD, *drawn, padded, processed=row.processed, sink_VD=sink_VD)
            return grad_MD if beside is None else (grad_MD.float() + beside(hidden_MD)).to(grad_MD.dtype)

        self._states.differentiate(row, through_head, sink_VD=sink_VD)

    @torch.no_grad()
    def hidden(self, row: RowTensors) -> Tensor:
        """The hidden states that the targets are predicted from, shape (N, D), without gradients."""
        hidden_MD = self._states(row)
        self._states.model.release()
        return hidden_MD[: len(row.weights)]

    def _take_head(self) -> None:
        self.head.weight_VD = self._states.model.head_weight  # a sharded head is gathered only now
