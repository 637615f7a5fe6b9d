"""Samples, which queue agents get and return: sequences of different lengths, packed into one tensor for each key.

Knows: keys, lengths, tensors.  Knows not: what the keys mean.
Invariant: the data of a key holds exactly what its `seqlens` say, unless validation was switched off.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from types import ModuleType
from typing import Any

from ludus.compat.members import with_members
from ludus.errors import UserError

_VALIDATES: ContextVar[bool] = ContextVar("ludus_sequence_sample_validates", default=True)

# Keys by their length relative to that of the whole sequence, for `from_default`.
_ONE = "seq_no_eos_mask greedy_seq_no_eos_mask loss_mask rewards greedy_rewards base_scores task_ids"
_WHOLE = """input_ids packed_seq seq packed_logits_mask logits_mask prompt_mask greedy_prompt_mask packed_input_ids
    greedy_packed_input_ids values packed_prompts"""
_WITHOUT_FIRST = """packed_logprobs prox_logp logprobs packed_ref_logprobs ref_logprobs old_logp ref_logp advantages
    ppo_loss_mask kl_rewards returns"""
_LENGTHS: dict[str, Callable[[int], int]] = {
    **dict.fromkeys(_ONE.split(), lambda _: 1),
    **dict.fromkeys(_WHOLE.split(), lambda whole: whole),
    **dict.fromkeys(_WITHOUT_FIRST.split(), lambda whole: whole - 1),
}


@dataclass
class SequenceSplitSpec:
    """How to split: bounds of the parts, or their sizes; each is derived from the other."""

    partitions: list[tuple[int, int]] | None = None
    sizes: list[int] | None = None

    def __post_init__(self) -> None:
        if self.partitions is None and self.sizes is None:
            raise ValueError("a split needs partitions or sizes")
        if self.partitions is None:
            self.partitions = list(pairwise(accumulate(self.sizes or (), initial=0)))
        bound = 0
        for start, end in self.partitions:
            if start != bound or end <= start:
                raise ValueError(f"partition ({start}, {end}) must begin at {bound} and hold something")
            bound = end
        sizes = [end - start for start, end in self.partitions]
        if self.sizes is not None and self.sizes != sizes:
            raise ValueError(f"sizes {self.sizes} are not those of the partitions, {sizes}")
        self.sizes = sizes


@with_members("realhf", "api.cli_args.MicroBatchSpec")
@dataclass
class MicroBatchSpec:
    """Minimum number of parts, and maximum number of tokens in each."""

    n_mbs: int = 1
    max_tokens_per_mb: int = 10**12


@with_members("realhf", "api.core.data_api.SequenceSample")
@dataclass(eq=False)
class SequenceSample:
    """Items with ids, each with one or more sequences under every key."""

    keys: set[str]
    trailing_shapes: dict[str, Any]
    """Shape of the value at one position; () for numbers."""
    dtypes: dict[str, Any]
    ids: list[Any]
    """Unique; stored as strings."""
    seqlens: dict[str, list[list[int]]]
    """Lengths of the sequences, by key and item."""
    data: dict[str, Any] | None = None
    """One tensor for each key, with all sequences of all items concatenated. None: a description without data."""
    metadata: dict[str, list[Any]] = field(default_factory=dict)
    """Anything else, one value for each item."""

    def __post_init__(self) -> None:
        given = list(self.keys)
        self.keys = set(given)
        self.ids = [str(item) for item in self.ids]
        if _VALIDATES.get():
            if len(self.keys) != len(given):
                raise ValueError(f"keys must differ, got {given}")
            self._validate()

    def __repr__(self) -> str:
        return f"SequenceSample(ids={self.ids}, keys={sorted(self.keys)}, has_data={self.data is not None})"

    @property
    def _tables(self) -> dict[str, dict[str, Any]]:
        """The fields that are indexed by key, by field name."""
        described = {"seqlens": self.seqlens, "trailing_shapes": self.trailing_shapes, "dtypes": self.dtypes}
        return described if self.data is None else {**described, "data": self.data}

    def _validate(self) -> None:
        if len(set(self.ids)) != len(self.ids):
            raise ValueError(f"ids must differ, got {self.ids}")
        for name, table in self._tables.items():
            if set(table) != self.keys:
                raise KeyError(f"{name} has the keys {sorted(table)}, and the sample {sorted(self.keys)}")
        for key, lengths in self.seqlens.items():
            if len(lengths) != len(self.ids):
                raise ValueError(f"seqlens[{key!r}] is of {len(lengths)} items, and there are {len(self.ids)} ids")
            if not all(type(length) is int for item in lengths for length in item):
                raise ValueError(f"seqlens[{key!r}] must hold lists of int, got {lengths!r:.200}")
        for key, shape in self.trailing_shapes.items():
            self.trailing_shapes[key] = None if shape is None else tuple(shape)
        for key, value in (self.data or {}).items():
            self._validate_data(key, value)

    def _validate_data(self, key: str, value: Any) -> None:
        if value is None:
            return
        if not hasattr(value, "shape"):
            raise ValueError(f"data[{key!r}] must be a tensor, got a {type(value).__name__}; use torch.tensor(...)")
        shape = (self._num_positions(key), *(self.trailing_shapes[key] or ()))
        if tuple(value.shape) != shape:
            raise ValueError(f"data[{key!r}] has the shape {tuple(value.shape)}, and seqlens say {shape}")
        if value.dtype != self.dtypes[key]:
            raise ValueError(f"data[{key!r}] is of {value.dtype}, and dtypes say {self.dtypes[key]}")

    @classmethod
    @contextmanager
    def disable_validation(cls) -> Iterator[None]:
        """Do not validate samples that are made inside the block, in this thread or task."""
        token = _VALIDATES.set(False)
        try:
            yield
        finally:
            _VALIDATES.reset(token)

    @classmethod
    def from_default(
        cls,
        seqlens: Sequence[Any],
        ids: Sequence[Hashable],
        data: Mapping[str, Any],
        metadata: Mapping[str, list[Any]] | None = None,
    ) -> SequenceSample:
        """A sample with one sequence of length `seqlens` for each item; the lengths under a key are derived from its
        name.

        Raises NotImplementedError for an unknown key.
        """
        unknown = next((key for key in data if key not in _LENGTHS), None)
        if unknown is not None:
            raise NotImplementedError(
                f"the name {unknown!r} does not say how long it is; make the SequenceSample itself"
            )
        lengths = [item[0] if isinstance(item, list) else item for item in seqlens]
        for name, values in (metadata or {}).items():
            if not isinstance(values, list) or len(values) != len(lengths):
                raise ValueError(f"metadata[{name!r}] must be a list of {len(lengths)} values, got {values!r:.100}")
        return cls(
            keys=set(data),
            ids=list(ids),
            seqlens={key: [[_LENGTHS[key](length)] for length in lengths] for key in data},
            trailing_shapes=_each(data, lambda _, value: tuple(value.shape[1:])),
            dtypes=_each(data, lambda _, value: value.dtype),
            data=dict(data),
            metadata=dict(metadata or {}),
        )

    @property
    def bs(self) -> int:
        """Number of items."""
        return len(self.ids)

    def sequences(self, key: str) -> Iterator[tuple[int, list[Any]]]:
        """The index of the item and the values of each sequence under `key`, in order. Raises KeyError without data."""
        if self.data is None or self.data.get(key) is None:
            raise KeyError(f"the sample has no data under {key!r}; it has {sorted(self.data or {})}")
        values: list[Any] = self.data[key].tolist()
        at = 0
        for idx, lengths in enumerate(self.seqlens[key]):
            for length in lengths:
                yield idx, values[at : at + length]
                at += length

    # ---- together and apart

    @classmethod
    def gather(cls, samples: Sequence[SequenceSample], keys: Iterable[str] | None = None) -> SequenceSample:
        """The items of all samples, in order. keys: None: those of the first."""
        first = samples[0]
        chosen = set(first.keys if keys is None else keys)
        part = first.select(chosen)
        return part._changed(
            ids=[item for sample in samples for item in sample.ids],
            seqlens={key: [item for sample in samples for item in sample.seqlens[key]] for key in chosen},
            data=_each(part.data, lambda key, _: import_torch().cat([(each.data or {})[key] for each in samples])),
            metadata={name: [item for sample in samples for item in sample.metadata[name]] for name in first.metadata},
        )

    def split_with_spec(self, spec: SequenceSplitSpec) -> list[SequenceSample]:
        """The parts that `spec` names."""
        return [self._part(start, end) for start, end in spec.partitions or ()]

    def split(self, mb_spec: MicroBatchSpec) -> tuple[list[SequenceSample], list[int], list[int]]:
        """Parts within the bounds of `mb_spec`, the permutation of the items, and its inverse."""
        longest = max(self.keys, key=self._num_positions)
        groups = _first_fit([sum(lengths) for lengths in self.seqlens[longest]], mb_spec)
        forward = [idx for group in groups for idx in group]
        backward = [forward.index(idx) for idx in range(self.bs)]
        parts = self.reorder(self, forward).split_with_spec(SequenceSplitSpec(sizes=[len(group) for group in groups]))
        return parts, forward, backward

    def unpack(self) -> list[SequenceSample]:
        """A sample for each item."""
        return [self._part(idx, idx + 1) for idx in range(self.bs)]

    @staticmethod
    def reorder(sample: SequenceSample, indices: Sequence[int]) -> SequenceSample:
        """The items in the order of `indices`, which names each once."""
        if sorted(indices) != list(range(sample.bs)):
            raise ValueError(f"indices must name each of the {sample.bs} items once, got {list(indices)}")
        parts = sample.unpack()
        return SequenceSample.gather([parts[idx] for idx in indices])

    @staticmethod
    def shuffled(sample: SequenceSample, seed: int = 0) -> SequenceSample:
        """The items, shuffled by `seed`."""
        indices = list(range(sample.bs))
        random.Random(seed).shuffle(indices)
        return SequenceSample.reorder(sample, indices)

    def select(self, keys: Iterable[str]) -> SequenceSample:
        """The sample with only these keys."""
        chosen = set(keys)
        tables = {name: {key: table[key] for key in chosen} for name, table in self._tables.items()}
        return self._changed(keys=chosen, **tables)

    def meta(self) -> SequenceSample:
        """The description without the data."""
        return self._changed(data=None)

    # ---- changes in place

    def update_(self, other: SequenceSample) -> None:
        """Adds the keys of `other`, which has the same ids."""
        if self.ids != other.ids:
            raise ValueError(f"only samples of the same ids go together: {self.ids} and {other.ids}")
        self.keys = self.keys | other.keys
        self.metadata.update(other.metadata)
        own = self._tables
        for name, table in other._tables.items():
            own.get(name, {}).update(table)

    def remap_keys_(self, remap: Mapping[str, str]) -> None:
        """Renames keys."""
        for name, table in self._tables.items():
            setattr(self, name, {remap.get(key, key): value for key, value in table.items()})
        self.keys = {remap.get(key, key) for key in self.keys}

    def to_device(self, device: Any) -> SequenceSample:
        """This sample, its data moved."""
        self.data = _each(self.data, lambda _, value: value.to(device))
        return self

    def cpu(self) -> SequenceSample:
        return self.to_device("cpu")

    def cuda(self) -> SequenceSample:
        return self.to_device("cuda")

    # ---- JSON

    def as_json_compatible(self) -> dict[str, Any]:
        """The sample as JSON has it; `from_json_compatible` reads it back."""
        return {
            **vars(self),
            "keys": sorted(self.keys),
            "dtypes": _each(self.dtypes, lambda _, dtype: str(dtype)),
            "data": _each(self.data, lambda _, value: value.tolist()),
        }

    @classmethod
    def from_json_compatible(cls, data: Mapping[str, Any]) -> SequenceSample:
        """The sample that `as_json_compatible` wrote."""
        torch = import_torch()
        dtypes = _each(data["dtypes"], lambda _, name: getattr(torch, name.removeprefix("torch.")))
        tensors = _each(data["data"], lambda key, value: torch.tensor(value, dtype=dtypes[key]))
        return cls(**{**data, "trailing_shapes": dict(data["trailing_shapes"]), "dtypes": dtypes, "data": tensors})

    def _num_positions(self, key: str) -> int:
        return sum(map(sum, self.seqlens[key]))

    def _part(self, start: int, end: int) -> SequenceSample:
        def positions(key: str) -> slice:
            return slice(*(sum(map(sum, self.seqlens[key][:idx])) for idx in (start, end)))

        return self._changed(
            ids=self.ids[start:end],
            seqlens={key: lengths[start:end] for key, lengths in self.seqlens.items()},
            data=_each(self.data, lambda key, value: value[positions(key)]),
            metadata={name: values[start:end] for name, values in self.metadata.items()},
        )

    def _changed(self, **changes: Any) -> SequenceSample:
        with self.disable_validation():
            return replace(self, **changes)


def import_torch() -> ModuleType:
    """torch, of which the data of samples is made. Raises UserError with the command that installs it."""
    try:
        import torch
    except ModuleNotFoundError:
        raise UserError("the samples of queue agents hold tensors: pip install 'ludus[train]'") from None
    return torch


def _each(table: Mapping[str, Any] | None, change: Callable[[str, Any], Any]) -> Any:
    """The table with `change(key, value)` applied to its values; None is unchanged, as a value and as a table."""
    if table is None:
        return None
    return {key: None if value is None else change(key, value) for key, value in table.items()}


def _first_fit(lengths: Sequence[int], spec: MicroBatchSpec) -> list[list[int]]:
    """Groups of indices within the bounds of `spec`, by first-fit decreasing."""
    order = sorted(range(len(lengths)), key=lambda idx: -lengths[idx])
    num_groups = min(spec.n_mbs, len(lengths))
    groups: list[list[int]] = [[idx] for idx in order[:num_groups]]
    for idx in order[num_groups:]:
        open_groups = [
            group for group in groups if sum(lengths[i] for i in group) + lengths[idx] <= spec.max_tokens_per_mb
        ]
        if open_groups:
            min(open_groups, key=lambda group: sum(lengths[i] for i in group)).append(idx)
        else:
            groups.append([idx])
    return sorted(sorted(group) for group in groups)
