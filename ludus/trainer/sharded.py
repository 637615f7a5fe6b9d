"""One model trained by several processes: rank 0 sends each call to all ranks as a command, and each does its part.

Knows: the trainer of one rank, commands, which rank has which rows of a batch.
Knows not: what a step computes, who starts the processes.
Invariants: all ranks execute the same commands in the same order, each with its `ModelTrainer`. No process holds more
of the weights, gradients and moments than its share and the parts that it is computing with.

If a rank fails it leaves the group, the others find the connection closed, and the run ends; it can be resumed from its
checkpoint on any number of ranks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ludus.algorithms.measured import TokenNumbers
from ludus.algorithms.pack import Batch, PackedRow
from ludus.algorithms.settings import AlgorithmSettings
from ludus.algorithms.share import share_rows
from ludus.errors import BackendError, UserError
from ludus.models.load import LoadedModel
from ludus.runs.metrics import Metrics
from ludus.runs.tokens import TokenColumns
from ludus.trainer.broadcast import GROUP_BYTES, Sent, announce, join, measured, send
from ludus.trainer.checkpoint import check_parts
from ludus.trainer.critic import CRITIC_FOLDER
from ludus.trainer.export import export_model
from ludus.trainer.group import TorchRanks, is_connection_lost, one_sentence
from ludus.trainer.settings import TrainerSettings
from ludus.trainer.step import ModelTrainer, OnTokens
from ludus.trainer.wire import rows_from_json, rows_to_json
from ludus_vllm.packed import Announcement

logger = logging.getLogger(__name__)

T = TypeVar("T")
# In these no rank waits for another, so a rank that cannot do it reports the error and goes on.
_BY_ONESELF = frozenset({"configure", "save", "load", "take_weights"})
_END = "end"


@dataclass(eq=False, slots=True)
class ShardedWeights:
    """The master weights of all ranks as a WeightSource: their values at the first copy.

    An engine that joins later is given that copy, which is kept until the next version is published.
    """

    trainer: ShardedTrainer
    version: int
    sampling: LoadedModel | None
    """A whole model in this process that samples. None: engines take the tensors."""
    is_copied: bool = False

    def named_tensors(self) -> Iterable[tuple[str, Tensor]]:
        """Name in the saved model and value in the model's dtype of every trained weight, on the CPU.

        Each is gathered when it is asked for, and need not be kept while the next one is.
        """
        model = self.trainer.model
        return model.saved((name, self.trainer.whole(name, self.version)) for name in model.trainable)

    @property
    def num_ranks(self) -> int:
        return self.trainer.num_ranks

    def announce(self, *, most_bytes: int = GROUP_BYTES) -> dict[str, Any]:
        """See RankWeights. Raises UserError as of `broadcast.announce`."""
        return asdict(announce(self.trainer.model, self.num_ranks, most_bytes=most_bytes))

    def join(self, name: str, addresses: Sequence[Mapping[str, Any]]) -> None:
        self.trainer.join(name, addresses)

    def broadcast(self, name: str, announced: Mapping[str, Any], *, is_measured: bool = False) -> list[Sent]:
        """See RankWeights; what each rank has sent."""
        return self.trainer.broadcast(name, announced, self.version, is_measured=is_measured)

    def leave(self, name: str) -> None:
        self.trainer.leave(name)

    @torch.no_grad()
    def copy_into_shared(self) -> None:
        """Copy the masters to the parameters of every rank and to the model that samples here; only the first call does
        anything."""
        if self.is_copied:  # the masters may have changed since, and another engine may be reading the copy
            return
        self.trainer.copy_to_parameters()
        if self.sampling is not None:
            for name, parameter in self.sampling.trainable.items():
                parameter.copy_(self.trainer.whole(name, self.version))
        self.is_copied = True


class ShardedTrainer:
    """Rank 0 of the processes that train one model; has the methods of `ModelTrainer`. Closing it ends the others."""

    def __init__(self, trainer: ModelTrainer, ranks: TorchRanks, *, sampling: LoadedModel | None = None) -> None:
        """trainer: of this process's rows.  sampling: a whole model in this process that samples. None: there is none.

        The other processes run `follow_commands`.
        """
        self._trainer = trainer
        self._ranks = ranks
        self._sampling = sampling
        self._lock = threading.RLock()
        """Held for a whole command, so that those of several threads do not mix."""
        self._failure: str | None = None
        """Why no command can be sent any more. None: the ranks are in step."""
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<ShardedTrainer of {self.model!r} at version {self.version} on {self._ranks.size} ranks>"

    @property
    def model(self) -> LoadedModel:
        return self._trainer.model

    @property
    def settings(self) -> TrainerSettings:
        return self._trainer.settings

    @property
    def version(self) -> int:
        """Batches trained on so far; the version of the masters."""
        return self._trainer.version

    def configure(self, *, lr: float, algorithm: AlgorithmSettings | None = None) -> None:
        self._command("configure", {"lr": lr, "algorithm": _to_json(algorithm)})

    def train_batch(
        self, batch: Batch, algorithm: AlgorithmSettings | None = None, *, on_tokens: OnTokens | None = None
    ) -> Metrics:
        parts = [self._by_rank(part) for part in batch.minibatches]
        own = [{"parts": [by_rank[rank] for by_rank in parts]} for rank in range(self._ranks.size)]
        how = {"algorithm": _to_json(algorithm), "version": batch.version, "keeps_tokens": on_tokens is not None}
        metrics: Metrics
        metrics, kept = self._command("train", how, own)
        if on_tokens is not None and kept is not None:
            on_tokens(kept)
        return metrics

    def forward_backward(self, batch: Batch, algorithm: AlgorithmSettings | None = None) -> Metrics:
        by_rank = [{"rows": rows} for rows in self._by_rank(batch.rows)]
        how = {"algorithm": _to_json(algorithm), "version": batch.version}
        result: Metrics = self._command("gather", how, by_rank)
        return result

    def measure(self, batch: Batch, names: Collection[str]) -> dict[int, TokenNumbers]:
        """As `ModelTrainer.measure`; every rank measures its share of the rows."""
        by_rank = [{"rows": rows} for rows in self._by_rank(batch.rows)]
        numbers: dict[int, TokenNumbers] = self._command("measure", {"names": sorted(names)}, by_rank)
        return numbers

    def score(self, sequences: Sequence[Sequence[int]]) -> tuple[tuple[float, ...], ...]:
        """As `ModelTrainer.score`; every rank computes all of it."""
        scores: tuple[tuple[float, ...], ...] = self._command(
            "score", {"sequences": [list(each) for each in sequences]}
        )
        return scores

    def publish(self) -> ShardedWeights:
        return ShardedWeights(self, self.version, self._sampling)

    def copy_to_parameters(self) -> None:
        """Copy the masters to the parameters of every rank."""
        self._command("copy")

    def whole(self, name: str, version: int) -> Tensor:
        """A trained weight in the model's dtype, on the CPU, gathered from all ranks.

        version: the newest, or the last published one, which an engine that was away may ask for later.
        """
        weight: Tensor = self._command("whole", {"name": name, "version": version})
        return weight

    @property
    def num_ranks(self) -> int:
        return self._ranks.size

    def join(self, name: str, addresses: Sequence[Mapping[str, Any]]) -> None:
        """See RankWeights, and `broadcast.join`."""
        self._command("join", {"name": name}, [{"address": dict(each)} for each in addresses])

    def leave(self, name: str) -> None:
        """See RankWeights. Never waits: if the ranks are busy, such as with sending to nobody, that ends with an error
        here, and the others leave when they are joined again, or end."""
        outlet = self._ranks.outlets.pop(name, None)
        if outlet is not None:
            outlet.abort()
        if self._lock.acquire(blocking=False):
            try:
                if self._failure is None and not self._is_closed:
                    self._command("leave", {"name": name})
            finally:
                self._lock.release()

    def broadcast(self, name: str, announced: Mapping[str, Any], version: int, *, is_measured: bool) -> list[Sent]:
        """As `ShardedWeights.broadcast`; version: as for `whole`."""
        how = {"name": name, "announced": dict(announced), "version": version, "is_measured": is_measured}
        return [Sent(**each) for each in self._command("broadcast", how)]

    def gradient(self, name: str) -> Tensor:
        """The accumulated gradient of a whole weight, fp32, on the CPU."""
        gradient: Tensor = self._command("gradient", {"name": name})
        return gradient

    def forget_gradients(self) -> None:
        self._command("forget")

    def save(self, folder: Path) -> None:
        """As `ModelTrainer.save`; every rank writes its file.

        Raises UserError if the ranks do not see the same folder, OSError if one of them cannot write.
        """
        self._command("save", {"folder": str(folder.resolve())})
        for state in (folder, folder / CRITIC_FOLDER):
            if state.is_dir():
                check_parts(state, self._ranks.size)

    def load(self, folder: Path) -> None:
        self._command("load", {"folder": str(folder.resolve())})

    def take_weights(self, folder: Path) -> None:
        self._command("take_weights", {"folder": str(folder.resolve())})

    def export(self, folder: Path, *, chat_template: str | None = None) -> None:
        """Write one folder that plain transformers or peft load; arguments as for `save_model`."""
        export_model(self.model, self.publish().named_tensors(), folder, chat_template=chat_template)

    def close(self) -> None:
        """End the other processes. Closing twice is allowed."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            is_whole = self._failure is None and not self._ranks.is_aborted
            if is_whole:
                for rank in range(1, self._ranks.size):
                    self._end(rank)
            self._ranks.close(is_broken=not is_whole)

    def _by_rank(self, rows: Sequence[PackedRow]) -> list[list[dict[str, Any]]]:
        """For each rank the rows of which it computes a part, as JSON values."""
        num_parts = self.model.part.count
        shares = [rows_to_json(share) for share in share_rows(rows, self._ranks.size // num_parts)]
        return [shares[rank // num_parts] for rank in range(self._ranks.size)]

    def _end(self, rank: int) -> None:
        """Tell a rank to end; one that was lost has ended already."""
        try:
            self._ranks.send(rank, {"do": _END})
        except RuntimeError as error:
            if not is_connection_lost(error):
                raise
            logger.warning("rank %d of the trainer had ended before it was told to; its log says why", rank)

    def _command(
        self, what: str, how: dict[str, Any] | None = None, own: Sequence[dict[str, Any]] | None = None
    ) -> Any:
        """Have all ranks execute a command; returns this rank's result. how: arguments for all; own: further ones by
        rank."""
        with self._lock:
            if self._failure is not None or self._is_closed:
                raise BackendError(self._failure or "the trainer is closed; open a new one")
            commands = [{"do": what, **(how or {}), **(own[rank] if own else {})} for rank in range(self._ranks.size)]
            try:
                for rank in range(1, self._ranks.size):
                    self._ranks.send(rank, commands[rank])
                if what not in _BY_ONESELF:
                    return execute_command(self._trainer, self._ranks, commands[0])
                return self._by_oneself(commands[0])
            except (UserError, OSError) as error:
                if what not in _BY_ONESELF:
                    self._failure = f"the trainer's ranks are out of step after {what!r} failed: {error}"
                raise
            except BaseException as error:
                # whatever it says who was computing when the group was broken off
                is_of_group = isinstance(error, RuntimeError) or (
                    self._ranks.is_aborted and isinstance(error, Exception)
                )
                if not is_of_group:
                    self._failure = f"the trainer's ranks are out of step after {what!r} failed: {type(error).__name__}"
                    raise
                is_lost = self._ranks.is_aborted or (isinstance(error, RuntimeError) and is_connection_lost(error))
                why = "the connection to one of them was lost, and its log says why"
                self._failure = (
                    f"training over {self._ranks.size} ranks failed in {what!r}: {why if is_lost else error}; "
                    "the run goes on from its last checkpoint"
                )
                raise BackendError(self._failure) from error

    def _by_oneself(self, command: dict[str, Any]) -> Any:
        try:
            result, refusal = execute_command(self._trainer, self._ranks, command), None
        except (UserError, OSError) as error:
            result, refusal = None, error
        answers = [self._ranks.receive(rank) for rank in range(1, self._ranks.size)]
        if refusal is not None:
            raise refusal
        for rank, answer in enumerate(answers, start=1):
            if answer is not None:
                error_type = UserError if answer["is_user_error"] else OSError
                raise error_type(f"rank {rank} of the trainer: {answer['said']}")
        return result


def follow_commands(trainer: ModelTrainer, ranks: TorchRanks) -> None:
    """Execute rank 0's commands in another process until rank 0 ends it. trainer: of this process's rows.

    Raises BackendError if another process is lost.
    """
    with one_sentence(ranks.rank):
        while (command := ranks.receive(0))["do"] != _END:
            if command["do"] not in _BY_ONESELF:
                execute_command(trainer, ranks, command)
                continue
            refusal = None
            try:
                execute_command(trainer, ranks, command)
            except (UserError, OSError) as error:
                refusal = {"said": str(error), "is_user_error": isinstance(error, UserError)}
            ranks.send(0, refusal)
    ranks.close()


def execute_command(trainer: ModelTrainer, ranks: TorchRanks, command: dict[str, Any]) -> Any:
    """Execute a command on this rank."""
    return _COMMANDS[command["do"]](trainer, ranks, command)


def _to_json(algorithm: AlgorithmSettings | None) -> dict[str, Any] | None:
    return None if algorithm is None else algorithm.model_dump(mode="json", exclude_unset=True)


def _from_json(command: dict[str, Any]) -> AlgorithmSettings | None:
    return None if command["algorithm"] is None else AlgorithmSettings(**command["algorithm"])


def _own(trainer: ModelTrainer, rows: Sequence[dict[str, Any]]) -> tuple[PackedRow, ...]:
    """The rows with the targets of this rank's parts."""
    return tuple(trainer.model.part.of(row) for row in rows_from_json(rows))


def _train(trainer: ModelTrainer, _: TorchRanks, command: dict[str, Any]) -> tuple[Metrics, TokenColumns | None]:
    """The metrics, and at rank 0 the record of the tokens, if it was asked for."""
    parts, kept = tuple(_own(trainer, part) for part in command["parts"]), list[TokenColumns]()
    on_tokens = kept.append if command["keeps_tokens"] else None
    metrics = trainer.train_batch(Batch(parts, command["version"]), _from_json(command), on_tokens=on_tokens)
    return metrics, kept[0] if kept else None


def _gather(trainer: ModelTrainer, _: TorchRanks, command: dict[str, Any]) -> Metrics:
    return trainer.forward_backward(Batch.of(_own(trainer, command["rows"]), command["version"]), _from_json(command))


def _measure(trainer: ModelTrainer, _: TorchRanks, command: dict[str, Any]) -> dict[int, TokenNumbers]:
    return trainer.measure(Batch.of(_own(trainer, command["rows"])), command["names"])


def _published(trainer: ModelTrainer, ranks: TorchRanks, name: str, version: int) -> Tensor:
    """This rank's piece of a weight of the newest version, or of the one that was published last."""
    is_newest = version == trainer.version
    return trainer.optimizer.rounded(name) if is_newest else ranks.local_piece(trainer.model.trainable[name])


def _whole(trainer: ModelTrainer, ranks: TorchRanks, command: dict[str, Any]) -> Tensor | None:
    name = command["name"]
    return ranks.whole(_published(trainer, ranks, name, command["version"]), trainer.model.trainable[name])


def _join(trainer: ModelTrainer, ranks: TorchRanks, command: dict[str, Any]) -> None:
    _leave(trainer, ranks, command)
    ranks.outlets[command["name"]] = join(command["address"], ranks.device)


def _leave(_: ModelTrainer, ranks: TorchRanks, command: dict[str, Any]) -> None:
    outlet = ranks.outlets.pop(command["name"], None)
    if outlet is not None:
        outlet.abort()


def _broadcast(trainer: ModelTrainer, ranks: TorchRanks, command: dict[str, Any]) -> list[Any]:
    """At rank 0 what each rank has sent, as JSON values."""
    outlet = ranks.outlets.get(command["name"])
    assert outlet is not None, f"the ranks have not been joined with {command['name']}"
    announced = Announcement(**command["announced"])
    own_names = dict(zip(announced.names, trainer.model.trainable, strict=True))

    def value(name: str) -> Tensor:
        return _published(trainer, ranks, own_names[name], command["version"])

    with measured() if command["is_measured"] else nullcontext(lambda: None) as peak:
        sent = send(announced, ranks.rank, value, outlet, ranks.device)
        sent = replace(sent, peak_bytes=peak())
    return ranks.gather(asdict(sent))


def _gradient(trainer: ModelTrainer, ranks: TorchRanks, command: dict[str, Any]) -> Tensor | None:
    name = command["name"]
    return ranks.whole(trainer.gradient(name), trainer.model.trainable[name])


_COMMANDS: dict[str, Callable[[ModelTrainer, TorchRanks, dict[str, Any]], Any]] = {
    "configure": lambda trainer, _, command: trainer.configure(lr=command["lr"], algorithm=_from_json(command)),
    "train": _train,
    "gather": _gather,
    "measure": _measure,
    "score": lambda trainer, _, command: trainer.score(command["sequences"]),
    "copy": lambda trainer, _, __: trainer.optimizer.copy_to_parameters(),
    "whole": _whole,
    "join": _join,
    "broadcast": _broadcast,
    "leave": _leave,
    "gradient": _gradient,
    "forget": lambda trainer, _, __: trainer.forget_gradients(),
    "save": lambda trainer, _, command: trainer.save(Path(command["folder"])),
    "load": lambda trainer, _, command: trainer.load(Path(command["folder"])),
    "take_weights": lambda trainer, _, command: trainer.take_weights(Path(command["folder"])),
}
