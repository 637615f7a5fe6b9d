"""Computes the gradient of an algorithm's loss over the rows of a minibatch, and accumulates it in the optimizer.

Knows: rows, the model's forward pass, losses as functions of tokens.  Knows not: which loss, who takes the step.
Invariant: the loss is a sum over tokens, so neither rows nor their order nor ranks change the gradient.

Most losses are sums of terms of single tokens: each row goes forward and backward, and the loss gives its slopes in
between. A loss that needs all tokens of a minibatch is called once, for all of them, with logprobs from a separate
forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ludus.algorithms.base import Algorithm, LossInputs, LossTerms
from ludus.algorithms.exact import exact
from ludus.algorithms.pack import OWN, PackedRow
from ludus.errors import InternalError
from ludus.trainer.forward import RowForward, RowTensors
from ludus.trainer.metric_means import TokenMeans
from ludus.trainer.optimizer import MasterOptimizer
from ludus.trainer.ranks import Ranks
from ludus.trainer.reference import ReferenceWeights
from ludus.trainer.shared_critic import HEAD_NAME, SharedCritic

Rows = Sequence[PackedRow]
Slopes = tuple[Tensor, Tensor | None]
"""The loss's derivatives by logprobs and by entropies (None: it does not depend on them), both of shape (N,)."""


class Backward:
    """Adds the gradients of rows to those in the optimizer."""

    def __init__(
        self,
        forward: RowForward,
        optimizer: MasterOptimizer,
        ranks: Ranks,
        *,
        head_name: str | None,
        hold: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """head_name: name of the head's weight, if this process has all of it and trains it.

        hold: makes a context manager that is entered while a row is computed (the lease).
        """
        self.reference: ReferenceWeights | None = None
        """None: no algorithm needs it."""
        self.shared_critic: SharedCritic | None = None
        """None: there is no critic that shares the policy's hidden states."""
        self._forward, self._optimizer, self._ranks = forward, optimizer, ranks
        self._head_name, self._hold = head_name, hold

    def logprobs(self, rows: Rows) -> list[Tensor]:
        """Logprobs of each row's targets under the current weights."""
        return [self._forward(self._forward.tensors(row))[0] for row in rows]

    def reference_logprobs(self, row: PackedRow) -> Tensor:
        """Logprobs of the row's targets under the initial weights of the training."""
        return self._under_reference(self._forward.tensors(row))

    def logit_gradients(self, row: PackedRow) -> Tensor:
        """Squared length of the gradient of each target's logprob by the logits, under the current weights."""
        return self._forward.logit_gradients(self._forward.tensors(row))

    def add(
        self,
        rows: Rows,
        means: TokenMeans,
        algorithm: Algorithm,
        proximal: Sequence[Tensor] | None = None,
        *,
        version: int = 0,
    ) -> None:
        """Add the loss's gradient over `rows` to the optimizer, and its metrics to `means`.

        proximal: logprobs of each row under the weights before the batch. None: those are the current weights.
        version: of the weights before the batch.
        """
        critic = self.shared_critic if "values" in algorithm.needs.measured else None
        if critic is not None:
            critic.prepare()
        if algorithm.needs.minibatch:
            self._add_together(rows, means, algorithm, proximal, version)
        else:
            for row_idx, row in enumerate(rows):
                with self._hold():
                    self._add_row(row, means, algorithm, None if proximal is None else proximal[row_idx], version)
        if critic is not None:
            self._optimizer.add_gradient(HEAD_NAME, critic.gradient())
        means.add_sum("train/tokens", sum(len(row.target_ids) for row in rows))

    def _add_row(
        self, row: PackedRow, means: TokenMeans, algorithm: Algorithm, proximal: Tensor | None, version: int
    ) -> None:
        tensors = self._forward.tensors(row)
        reference = self._under_reference(tensors) if algorithm.needs.reference else None
        ages = _ages(row, version, tensors.sampled_logprobs.device) if algorithm.needs.ages else None

        def slopes(chunk: slice, logprobs: Tensor, entropies: Tensor) -> Slopes:
            now = logprobs if algorithm.needs.proximal else None
            before = now if proximal is None else proximal[chunk]
            beginning = None if reference is None else reference[chunk]
            rest = (tensors.advantages[chunk], tensors.weights[chunk], entropies)
            origins = None if tensors.origins is None else tensors.origins[chunk]
            sampled = tensors.sampled_logprobs[chunk]
            older = None if ages is None else ages[chunk]
            inputs = LossInputs(logprobs, sampled, before, beginning, *rest, origins_N=origins, ages_N=older)
            return _slopes(inputs, algorithm, means, None if row.turns is None else row.turns[chunk])

        self._differentiate(row, tensors, slopes, algorithm, means)

    def _add_together(
        self, rows: Rows, means: TokenMeans, algorithm: Algorithm, proximal: Sequence[Tensor] | None, version: int
    ) -> None:
        parts: list[Tensor] = []
        for row_idx, row in enumerate(rows):
            with self._hold():
                tensors = self._forward.tensors(row)
                logprobs, entropies = self._forward(tensors)
                reference = self._under_reference(tensors) if algorithm.needs.reference else logprobs
            before = logprobs if proximal is None else proximal[row_idx]
            numbers = (logprobs, tensors.sampled_logprobs, before, reference, tensors.advantages, tensors.weights)
            # in float64, which holds both logprobs and the numbers of turns exactly
            ids = (*_ids(row, logprobs.device), _ages(row, version, logprobs.device))
            parts.append(torch.stack([exact(each) for each in (*numbers, entropies, *ids)]))
        first, columns = self._ranks.concat(torch.cat(parts, 1))
        device = logprobs.device
        current, sampled, before, reference, advantages, weights, entropies = columns[:-5].float().to(device)
        *places, ages = columns[-5:].long().to(device)
        needed = (before if algorithm.needs.proximal else None, reference if algorithm.needs.reference else None)
        places_and_ages = (*places, ages if algorithm.needs.ages else None)
        inputs = LossInputs(current, sampled, *needed, advantages, weights, entropies, *places_and_ages)
        # every rank computes all of it, and rank 0 reports
        slopes = _slopes(inputs, algorithm, means if self._ranks.rank == 0 else TokenMeans(), inputs.turns_N)
        for row in rows:
            with self._hold():
                ask = partial(_cut, slopes, first)
                self._differentiate(row, self._forward.tensors(row), ask, algorithm, means)
            first += len(row.target_ids)

    def _differentiate(
        self,
        row: PackedRow,
        tensors: RowTensors,
        slopes: Callable[[slice, Tensor, Tensor], Slopes],
        algorithm: Algorithm,
        means: TokenMeans,
    ) -> None:
        sink = None if self._head_name is None else self._optimizer.sink(self._head_name)
        scale = self._optimizer.loss_scale

        def scaled(chunk: slice, logprobs: Tensor, entropies: Tensor) -> Slopes:
            by_logprob, by_entropy = slopes(chunk, logprobs, entropies)
            return by_logprob * scale.factor, None if by_entropy is None else by_entropy * scale.factor

        critic, beside = self.shared_critic, None
        if critic is not None and "values" in algorithm.needs.measured:
            beside = partial(critic.through, row=row, tensors=tensors, means=means, scale=scale.factor)
        self._forward.differentiate(tensors, scaled if scale.is_needed else slopes, sink_VD=sink, beside=beside)

    def _under_reference(self, row: RowTensors) -> Tensor:
        assert self.reference is not None, "it is kept for an algorithm that needs it"
        with self.reference.in_place():
            return self._forward(row)[0]


def _ids(row: PackedRow, device: torch.device) -> list[Tensor]:
    """Number of the turn, episode and group of each target, and its origin."""
    if row.turns is None or row.episodes is None or row.groups is None:
        raise InternalError("an algorithm takes tokens together, and a row does not say of which turns they are")
    origins = row.origins or (OWN,) * len(row.target_ids)
    return [torch.tensor(each, device=device) for each in (row.turns, row.episodes, row.groups, origins)]


def _ages(row: PackedRow, version: int, device: torch.device) -> Tensor:
    """How many versions older than the weights `version` each target is."""
    return version - torch.tensor(row.versions, device=device)


def _cut(slopes: Slopes, first: int, chunk: slice, _logprobs: Tensor, _entropies: Tensor) -> Slopes:
    """The slopes of the tokens `chunk` of the row whose first target has the index `first`."""
    by_logprob, by_entropy = slopes
    at = slice(first + chunk.start, first + chunk.stop)
    return by_logprob[at], None if by_entropy is None else by_entropy[at]


def _slopes(
    inputs: LossInputs, algorithm: Algorithm, means: TokenMeans, turns_N: Sequence[int] | Tensor | None
) -> Slopes:
    """The loss's slopes; adds its value and metrics to `means`.

    turns_N: number of each token's turn. None: not known, so tokens are not recorded.
    """
    assert inputs.entropies_N is not None, "the head computes entropies with logprobs"
    logprobs = inputs.logprobs_N.detach().requires_grad_()
    entropies = inputs.entropies_N.detach().requires_grad_(algorithm.needs.entropy)
    with torch.enable_grad():
        terms = algorithm.terms(replace(inputs, logprobs_N=logprobs, entropies_N=entropies))
        wanted = (logprobs, entropies) if algorithm.needs.entropy else (logprobs,)
        slopes = torch.autograd.grad(terms.loss_N.sum(), wanted, materialize_grads=True)
    # in float64, so that the recorded losses of tokens add up to it
    means.add_sum("train/loss", float(exact(terms.loss_N.detach()).sum()))
    seen = {"train/entropy": entropies.detach().mean()} | {f"train/{name}": each for name, each in terms.shown.items()}
    means.add({name: float(each) for name, each in seen.items()}, len(logprobs))
    if means.tokens is not None and turns_N is not None:
        means.tokens.add(turns_N, _numbers(inputs, terms))
    return slopes[0], slopes[1] if algorithm.needs.entropy else None


_OF_TOKENS = {"ratio_mean": "ratio", "clip_fraction": "clipped", "left_out_fraction": "left_out"}
"""Names of metrics for a single token, where the metric's own name is that of a mean."""


def _numbers(inputs: LossInputs, terms: LossTerms) -> dict[str, Tensor]:
    """What is recorded of each token, by name."""
    assert inputs.entropies_N is not None, "the head computes entropies with logprobs"
    shown = {_OF_TOKENS.get(name, name): each for name, each in terms.of_tokens.items()}
    return {
        **({} if inputs.proximal_logprobs_N is None else {"old_logprob": inputs.proximal_logprobs_N}),
        **({} if inputs.reference_logprobs_N is None else {"reference_logprob": inputs.reference_logprobs_N}),
        **({} if terms.factor_N is None else {"factor": terms.factor_N}),
        **shown,
        "trained_logprob": inputs.logprobs_N,
        "ratio": terms.ratio_N,
        "advantage": inputs.advantages_N,
        "weight": terms.weights_N,
        "loss": terms.loss_N,
        "entropy": inputs.entropies_N,
    }
