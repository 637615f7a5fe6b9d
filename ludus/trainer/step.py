"""The trainer: trains a model on batches of packed rows, and publishes the weights when the engine asks for them.

Knows: model, an algorithm's needs and loss, optimizer, the compute lease.  Knows not: episodes, rewards, engines.
Invariants: the loss of a batch is a sum over its targets, so neither rows nor their order change the gradient; the
weights that sample change only when they are published (between that, only the masters change).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path

import torch
from torch import Tensor

from ludus.algorithms.base import Algorithm
from ludus.algorithms.measured import TokenNumbers
from ludus.algorithms.pack import Batch, TrainSequence, pack
from ludus.algorithms.resolve import algorithm_of
from ludus.algorithms.settings import AlgorithmSettings
from ludus.engines.lease import ComputeLease
from ludus.errors import UserError
from ludus.models.device import free_cached, use_device
from ludus.models.load import LoadedModel, read_trainable, save_model
from ludus.runs.metrics import Metrics, merge_means
from ludus.runs.tokens import TokenColumns
from ludus.text.constraint import Constraints
from ludus.text.tokenizer import Tokenizer
from ludus.trainer.backward import Backward, Rows
from ludus.trainer.checkpoint import read_state, write_state
from ludus.trainer.critic import Critic, CriticModel
from ludus.trainer.forward import RowForward
from ludus.trainer.measuring import Measure, measure_rows, numbers_by_turn, sampled_logprobs
from ludus.trainer.metric_means import TokenMeans, epoch_metrics
from ludus.trainer.optimizer import MasterOptimizer
from ludus.trainer.ranks import Ranks, SingleRank
from ludus.trainer.recompute import recompute_layers
from ludus.trainer.reference import ReferenceWeights, copied_weights
from ludus.trainer.rounding import Rounding
from ludus.trainer.settings import CriticSettings, TrainerSettings
from ludus.trainer.shared_critic import HEAD_NAME, SharedCritic
from ludus.trainer.token_record import TokenRecord, whole_record

LEASE_NAME = "trainer"
OnTokens = Callable[[TokenColumns], None]
_DEFAULT_ALGORITHM = AlgorithmSettings()


@dataclass(eq=False, slots=True)
class TrainedWeights:
    """The master weights as a WeightSource: their values at the first copy.

    An engine that joins later is given the copy, because the masters change while a step is trained. With minibatches
    or a reference the parameters, which are the copy, change then too, but only under the lease; so each is read under
    the lease.
    """

    model: LoadedModel
    optimizer: MasterOptimizer
    lease: ComputeLease
    is_copied: bool = False

    def named_tensors(self) -> Iterable[tuple[str, Tensor]]:
        """Name in the saved model and value in the model's dtype of every trained weight.

        After the first copy the lease is taken for each, so the caller must not hold it.
        """
        return self.model.saved(
            (name, self._sampling(parameter) if self.is_copied else self.optimizer.rounded(name))
            for name, parameter in self.model.trainable.items()
        )

    def _sampling(self, parameter: Tensor) -> Tensor:
        with self.lease.hold(LEASE_NAME):
            return parameter.detach().clone()

    def copy_into_shared(self) -> None:
        """Round the masters into the tensors that sample, once; the caller holds the lease."""
        if not self.is_copied:
            self.optimizer.copy_to_parameters()
            self.is_copied = True
            if self.optimizer.is_offloaded:  # the card is about to be the engine's
                free_cached(self.model.head_weight.device)


class ModelTrainer:
    """Trains a model's weights on batches of packed rows. A model can have only one: it installs hooks in the model."""

    def __init__(
        self,
        model: LoadedModel,
        settings: TrainerSettings,
        algorithm: AlgorithmSettings = _DEFAULT_ALGORITHM,
        *,
        lease: ComputeLease,
        tokenizer: Tokenizer | None = None,
        ranks: Ranks | None = None,
        seed: int = 0,
        critic: CriticModel | CriticSettings | None = None,
    ) -> None:
        """algorithm: of batches for which none is given.

        tokenizer: compiles the grammars that constrained answers. None: none did.

        seed: of the rounding of published weights.

        ranks: the processes over which the model is sharded; all must make the same calls, each with its own rows, and
        with equally many. None: the model is whole.

        critic: for algorithms that need values, as returned by `load_critic`. None: there is none.

        Raises UserError if the algorithm's own functions cannot be imported, or if it needs a critic and there is none.
        """
        self.model = model
        self.settings = settings
        self.version = 0
        """Batches trained on so far; the version of the masters."""
        self.ranks: Ranks = SingleRank() if ranks is None else ranks
        self._device = model.head_weight.device
        rounding = Rounding(settings.publish_rounding, seed, self._device)
        self._lease = lease
        self._is_alone = False
        constraints = None if tokenizer is None else Constraints(tokenizer)
        self._forward = RowForward(model, constraints, self._give_way)
        shared = None
        if isinstance(critic, CriticSettings):
            shared = SharedCritic(model, critic, self._forward, self.ranks)
        trained = model.trainable | ({} if shared is None else {HEAD_NAME: shared.parameter})
        in_host = settings.offload == "optimizer"
        self.optimizer = MasterOptimizer(trained, settings.optimizer, rounding, self.ranks, in_host=in_host)
        is_whole = model.gathering is None
        heads = [name for name, each in model.trainable.items() if is_whole and each is model.head_weight]
        head = heads[0] if heads else None
        self._backward = Backward(self._forward, self.optimizer, self.ranks, head_name=head, hold=self._hold)
        self._backward.shared_critic = shared
        # a row uses few of the embedding's rows, so its gradient is sparse; sums over ranks are dense, and Apple's GPUs
        # have no sparse tensors
        is_sparse = is_whole and self._device.type != "mps"
        model.embedding.sparse = is_sparse and model.embedding.weight.requires_grad
        self.critic: Critic | None = None
        """A critic with a model of its own. None: there is none, or it shares the policy's layers."""
        if isinstance(critic, CriticModel):
            self.critic = Critic(
                critic, settings, rounding=rounding, ranks=self.ranks, hold=self._hold, give_way=self._give_way
            )
        self._algorithm = self._prepared(algorithm)
        if settings.activation_checkpointing:
            recompute_layers(model)

    def __repr__(self) -> str:
        return f"<ModelTrainer of {self.model!r} at version {self.version}>"

    def offload(self) -> None:
        """From now on the card holds masters, gradients and moments only while a batch is trained."""
        for optimizer in (self.optimizer, *(() if self.critic is None else (self.critic.optimizer,))):
            optimizer.offload()

    def configure(self, *, lr: float, algorithm: AlgorithmSettings | None = None) -> None:
        """Use this learning rate and algorithm from the next batch on. algorithm: None: it is not changed.

        Raises UserError if the algorithm needs something that is missing, such as initial weights that were not kept.
        """
        self._algorithm = self._chosen(algorithm)
        optimizer = self.settings.optimizer.model_copy(update={"lr": lr})
        self.settings = self.settings.model_copy(update={"optimizer": optimizer})
        self.optimizer.settings = optimizer

    def measure(self, batch: Batch, names: Collection[str]) -> dict[int, TokenNumbers]:
        """Measure the batch's targets under the current weights; at rank 0 the results by the number of their turn.

        batch: with several ranks, this rank's own rows.  names: fields of `TokenNumbers`.
        """
        measures: dict[str, Measure] = {
            "sampled_logprobs": sampled_logprobs,
            "reference_logprobs": self._backward.reference_logprobs,
            "logit_gradients": self._backward.logit_gradients,
        }
        if self.critic is not None:
            measures["values"] = self.critic.values
        elif self._backward.shared_critic is not None:
            self._backward.shared_critic.prepare()
            measures["values"] = self._backward.shared_critic.values
        own = measure_rows(batch.rows, {name: measures[name] for name in sorted(names)}, self._hold)
        return numbers_by_turn(self.ranks.gather(own))

    def train_batch(
        self, batch: Batch, algorithm: AlgorithmSettings | None = None, *, on_tokens: OnTokens | None = None
    ) -> Metrics:
        """Take one optimizer step on each minibatch of the batch in each epoch, and return the metrics.

        batch: with several ranks, this rank's own rows.  algorithm: of this batch. None: the trainer's own.
        on_tokens: called at rank 0 with the numbers of each token as the loss of its minibatch used them in the last
        epoch, unless only a critic was trained. None: they are not kept.
        The weights that sample do not change until they are published. A critic is trained on the same minibatches, and
        only the critic while it warms up.
        """
        chosen = self._chosen(algorithm)
        parts = [part for part in batch.minibatches if part]
        critic = self.critic if "values" in chosen.needs.measured else None
        is_alone = critic is not None and critic.is_warming_up
        learned = {} if critic is None else critic.train(batch.minibatches, epochs=chosen.epochs)
        if is_alone:
            self.version += 1
            return {**learned, "train/optimizer_steps": 0.0}
        record = None if on_tokens is None else TokenRecord()
        epochs = [*(TokenMeans() for _ in range(chosen.epochs - 1)), TokenMeans(record)]
        steps: list[Metrics] = []
        if parts:
            with self.optimizer.on_device():
                if len(parts) == len(epochs) == 1:
                    self._backward.add(parts[0], epochs[0], chosen, version=batch.version)
                    steps.append(self._step())
                else:
                    steps += self._train_parts(parts, epochs, chosen, batch.version)
        self.optimizer.end_batch()
        self.version += 1
        if on_tokens is not None and record is not None:
            kept = self.ranks.gather(record.parts())
            if self.ranks.rank == 0:
                on_tokens(whole_record(kept, num_minibatches=len(batch.minibatches)))
        result = epoch_metrics([means.over(self.ranks) for means in epochs], num_minibatches=len(batch.minibatches))
        about = {"train/optimizer_steps": float(len(steps)), "train/threads": float(torch.get_num_threads())}
        return {**learned, **result, **merge_means(steps), **about}

    def forward_backward(self, batch: Batch, algorithm: AlgorithmSettings | None = None) -> Metrics:
        """Add the batch's gradient to the accumulated one, and return the metrics."""
        means = TokenMeans()
        with self.optimizer.on_device():
            self._backward.add(batch.rows, means, self._chosen(algorithm), version=batch.version)
        return means.over(self.ranks)

    def gradient(self, name: str) -> Tensor:
        """The accumulated gradient of a weight, fp32."""
        scale, gathered = self.optimizer.loss_scale, self.optimizer.sink(name)
        return gathered / scale.factor if scale.is_needed else gathered

    def forget_gradients(self) -> None:
        """Discard the accumulated gradients."""
        self.optimizer.forget_gradients()

    def score(self, sequences: Sequence[Sequence[int]]) -> tuple[tuple[float, ...], ...]:
        """At rank 0, for each sequence the logprobs of all tokens but the first, at temperature 1.

        Computed exactly as in training, with the weights that sample.
        """
        scores: list[tuple[float, ...]] = []
        for token_ids in sequences:
            if len(token_ids) < 2:
                scores.append(())
                continue
            (row,) = pack([TrainSequence.plain(token_ids, range(1, len(token_ids)))], row_tokens=len(token_ids))
            with self._hold():
                logprobs, _ = self._forward(self._forward.tensors(self.model.part.of(row)))
            parts = self.ranks.gather(logprobs.tolist())  # the first ranks have those of one row
            scores.append(tuple(chain.from_iterable(parts[: self.model.part.count])))
        return tuple(scores)

    def publish(self) -> TrainedWeights:
        """The new weights, for an engine's `publish`; nothing is copied before the engine does so."""
        return TrainedWeights(self.model, self.optimizer, self._lease)

    def save(self, folder: Path) -> None:
        """Write what `load` needs to continue exactly: masters, moments, schedule, version. Synced to disk."""
        write_state(folder, self.version, self.optimizer.state(), self.ranks)
        if self.critic is not None:
            self.critic.save(folder)

    def load(self, folder: Path) -> None:
        """Load what `save` wrote, with any number of ranks; the weights that sample become those of the checkpoint.

        Raises UserError if there is no checkpoint, or if it is of another model.
        """
        self.version, state = read_state(folder, self.optimizer.pieces)
        self.optimizer.load_state(state)
        with self._hold():
            self.optimizer.copy_to_parameters()
        if self.critic is not None:
            self.critic.load(folder)

    def export(self, folder: Path, *, chat_template: str | None = None) -> None:
        """Write the weights that sample so that plain transformers or peft load them; arguments as for `save_model`."""
        save_model(self.model, folder, chat_template=chat_template)

    def take_weights(self, folder: Path) -> None:
        """Start anew with the weights of a saved model, which also become those that sample.

        Raises UserError if they are those of another model.
        """
        kept = {name: own for name, own in self.optimizer.masters.items() if name not in self.model.trainable}
        self.optimizer.take_weights({**read_trainable(self.model, folder, self.ranks.piece), **kept})
        with self._hold():
            self.optimizer.copy_to_parameters()
            if self._backward.reference is not None:
                self._backward.reference = ReferenceWeights(self.model, self.ranks)

    def _chosen(self, algorithm: AlgorithmSettings | None) -> Algorithm:
        return self._algorithm if algorithm is None else self._prepared(algorithm)

    def _prepared(self, settings: AlgorithmSettings) -> Algorithm:
        """The algorithm, with its own functions imported and the reference kept if it needs one."""
        algorithm = algorithm_of(settings)
        algorithm.load()
        needs = algorithm.needs
        if "values" in needs.measured and self.critic is None and self._backward.shared_critic is None:
            raise UserError(
                f"algorithm {algorithm.name!r} needs a critic, and this trainer was opened without one; name the "
                "algorithm in the run's configuration, from the beginning"
            )
        is_needed = needs.reference or "reference_logprobs" in needs.measured
        # an adapter's is kept from the beginning: it is small, and a later batch may ask for it, also after a resume
        if (is_needed or self.model.adapter is not None) and self._backward.reference is None:
            if self.version > 0:
                raise UserError(
                    f"algorithm {algorithm.name!r} compares with the weights that training began with, and after "
                    f"{self.version} batches they are gone; set the algorithm from the beginning"
                )
            self._backward.reference = ReferenceWeights(self.model, self.ranks)
        return algorithm

    def _train_parts(
        self, parts: Sequence[Rows], epochs: Sequence[TokenMeans], algorithm: Algorithm, version: int
    ) -> list[Metrics]:
        steps: list[Metrics] = []
        with self._alone():
            # all before the first step, whose own pass has them: the proximal policy is that before the whole batch
            proximal = [
                self._backward.logprobs(part) if algorithm.needs.proximal and (number or len(epochs) > 1) else None
                for number, part in enumerate(parts)
            ]
            for means, (part, before) in product(epochs, list(zip(parts, proximal, strict=True))):
                self._backward.add(part, means, algorithm, before if steps else None, version=version)
                steps.append(self._step())
                self.optimizer.copy_to_parameters()
        return steps

    def _step(self) -> dict[str, float]:
        with self._hold():
            return self.optimizer.step().metrics("train")

    def _hold(self) -> AbstractContextManager[None]:
        use_device(self._device)
        return nullcontext() if self._is_alone else self._lease.hold(LEASE_NAME)

    def _give_way(self) -> None:
        if not self._is_alone:
            self._lease.give_way()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lease for a batch of several steps, between which the parameters have values that must not sample;
        afterwards they have their old values again."""
        use_device(self._device)
        with self._lease.hold(LEASE_NAME):
            before = copied_weights(self.model, self.ranks)
            self._is_alone = True
            try:
                yield
            finally:
                self._is_alone = False
                with torch.no_grad():
                    for name, parameter in self.model.trainable.items():
                        self.ranks.local_piece(parameter).copy_(before[name])
