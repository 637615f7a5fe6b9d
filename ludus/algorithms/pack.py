"""Training sequences packed into rows whose shared prefixes are stored once, and the batch that holds the rows.

Knows: token ids, targets, a token budget.  Knows not: sessions, rewards, tensors.
Invariants: every target of every sequence is in exactly one row, and the ancestors of its source in that row
are exactly the tokens before it in its sequence; so packing never changes a loss or a gradient.

A row is a forest in depth-first order.  Two sequences `a b C` and `a b D E` (capitals are targets) become

    token     a  b  D          the last target of a path is predicted, never fed: C and E are not stored
    parent   -1  0  1
    source       1,1 2         the hidden state of b predicts both C and D, that of D predicts E
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from ludus.errors import InternalError, UserError

Path = tuple[int, ...]
OWN, REPLAYED, DEMONSTRATED, UNRELATED = 0, 1, 2, 3
"""Where targets come from: sampled for this batch; replayed from an earlier batch; given as a demonstration; or the
answer to another prompt, put after this one, on which KTO's reference point is measured."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogitProcessing:
    """How the logits were changed before the tokens of an answer were drawn. The defaults change nothing."""

    answer_from: int
    """Index in its sequence of the answer's first token: presence and frequency penalties count tokens from there."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    """Counts all tokens before, prompt included."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs of token id and bias; each id once, in rising order."""
    grammar: str | None = None
    """The grammar that constrained the answer, to be applied again; its tokens then have no kept sets. None: there was
    none, or the kept sets hold what it allowed."""

    @property
    def changes_logits(self) -> bool:
        """Whether anything but a grammar was applied."""
        return self != LogitProcessing(self.answer_from, grammar=self.grammar)


@dataclass(frozen=True, slots=True)
class TrainSequence:
    """A sequence of tokens, the trained ones among them (targets), and what the loss needs to know of each target."""

    token_ids: tuple[int, ...]
    target_idx: tuple[int, ...]
    """Indices into `token_ids` of the targets, rising, each >= 1: nothing predicts the first token."""
    advantages: tuple[float, ...]
    weights: tuple[float, ...]
    """Weight of each target in the loss of the whole optimizer batch."""
    logprobs: tuple[float, ...]
    """As recorded when sampled."""
    versions: tuple[int, ...]
    temperatures: tuple[float, ...]
    turns: tuple[int, ...] | None = None
    """Numbers of each target's turn, episode and group in its batch. None: no rule needs them."""
    episodes: tuple[int, ...] | None = None
    groups: tuple[int, ...] | None = None
    values: tuple[float, ...] | None = None
    """The critic's value before each target, and the target of that value. None: there is no critic."""
    value_targets: tuple[float, ...] | None = None
    kept_ids: tuple[tuple[int, ...], ...] = ()
    """For each target the ids it was drawn from (top-k, top-p or a grammar), rising, its own among them; an empty
    entry: from the whole vocabulary. Empty: so were all."""
    logit_processings: tuple[LogitProcessing | None, ...] = ()
    """For each target how its logits were changed; None: they were not. Empty: none were."""
    origins: tuple[int, ...] = ()
    """For each target where it comes from. Empty: all are `OWN`."""

    def __post_init__(self) -> None:
        _check_lengths(len(self.target_idx), *_columns(self))
        before = 0
        for index in self.target_idx:
            if index <= before or index >= len(self.token_ids):
                raise InternalError(
                    f"target_idx must rise within 1..{len(self.token_ids) - 1}, but {index} comes after {before}"
                )
            before = index
        for index, kept in zip(self.target_idx, self.kept_ids, strict=bool(self.kept_ids)):
            if kept and not is_among(self.token_ids[index], kept):
                raise InternalError(f"token {self.token_ids[index]} is none of the {len(kept)} it was drawn among")

    @classmethod
    def plain(cls, token_ids: Sequence[int], targets: Iterable[int]) -> TrainSequence:
        """A sequence that was not sampled, such as a supervised one: weight and advantage of each target are 1."""
        target_idx = tuple(targets)
        ones, zeros = (1.0,) * len(target_idx), (0.0,) * len(target_idx)
        return cls(tuple(token_ids), target_idx, ones, ones, zeros, (0,) * len(target_idx), ones)


@dataclass(frozen=True, slots=True)
class PackedRow:
    """A forest of tokens for one forward pass, and the targets predicted from it."""

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    """Of each token in its own sequence."""
    parents: tuple[int, ...]
    """Row index of the token before this one, always smaller than its own index; -1 at the first of a sequence."""
    source_idx: tuple[int, ...]
    """Per target: the row index whose hidden state predicts it. Targets that share a source share a prefix."""
    target_ids: tuple[int, ...]
    advantages: tuple[float, ...]
    weights: tuple[float, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    temperatures: tuple[float, ...]
    turns: tuple[int, ...] | None = None
    """As in TrainSequence."""
    episodes: tuple[int, ...] | None = None
    groups: tuple[int, ...] | None = None
    values: tuple[float, ...] | None = None
    value_targets: tuple[float, ...] | None = None
    kept_ids: tuple[tuple[int, ...], ...] = ()
    """As in TrainSequence."""
    logit_processings: tuple[LogitProcessing | None, ...] = ()
    """As in TrainSequence; `answer_from` is a position in the sequence, as `positions` has it."""
    origins: tuple[int, ...] = ()
    """As in TrainSequence."""
    num_sequence_tokens: int = 0
    """Tokens of the sequences in this row before sharing; 0 in rows that `pack` did not make."""

    def __post_init__(self) -> None:
        _check_lengths(len(self.token_ids), self.positions, self.parents)
        _check_lengths(len(self.source_idx), self.target_ids, *_columns(self))


@dataclass(frozen=True, slots=True)
class Batch:
    """What one training step trains on: the rows of each optimizer step, in order."""

    minibatches: tuple[tuple[PackedRow, ...], ...]
    """For one without rows no optimizer step is made."""
    version: int
    """Of the weights that this batch is about to change."""

    @classmethod
    def of(cls, rows: Iterable[PackedRow], version: int = 0) -> Batch:
        """A batch of a single optimizer step."""
        return cls((tuple(rows),), version)

    @property
    def rows(self) -> tuple[PackedRow, ...]:
        return tuple(row for part in self.minibatches for row in part)

    @property
    def num_trained(self) -> int:
        return sum(len(row.target_ids) for row in self.rows)

    @property
    def num_row_tokens(self) -> int:
        """Tokens that go through the model."""
        return sum(len(row.token_ids) for row in self.rows)

    @property
    def num_sequence_tokens(self) -> int:
        """Tokens that would go through the model if nothing were shared."""
        return sum(row.num_sequence_tokens for row in self.rows)


def pack(sequences: Sequence[TrainSequence], *, row_tokens: int) -> tuple[PackedRow, ...]:
    """Rows of at most `row_tokens` stored tokens that hold every target once; equal input gives equal rows.

    A single path longer than `row_tokens` gets a row of its own. Sequences without targets are left out.
    The cuts between rows repeat as few shared tokens as possible; the pieces then fill rows, largest first.
    """
    if row_tokens < 1:
        raise UserError(f"row_tokens must be at least 1, got {row_tokens}")
    by_path: dict[Path, list[TrainSequence]] = {}
    for sequence in sequences:
        if sequence.target_idx:
            by_path.setdefault(sequence.token_ids[: sequence.target_idx[-1]], []).append(sequence)
    pieces = _cut(sorted(by_path), row_tokens)
    return tuple(_build_row(paths, by_path) for paths in _fill(pieces, row_tokens))


@dataclass(frozen=True, slots=True)
class _Piece:
    """Neighbouring paths that stay together in one row."""

    paths: tuple[Path, ...]
    num_tokens: int


def _cut(paths: Sequence[Path], row_tokens: int) -> list[_Piece]:
    """The sorted paths as pieces of at most `row_tokens`, cut where the fewest shared tokens are stored twice.

    In sorted order a path adds to a trie exactly what goes beyond its common start with the path before it, so
    a cut costs the length of that common start; the cheapest cuts come from the shortest way to each path.
    """
    shared = [0] + [_num_common(a, b) for a, b in pairwise(paths)]
    cost = [0]
    starts = [0]
    sizes = [0]
    for end, path in enumerate(paths):
        # A path longer than the budget may still share its row with its own prefixes: they add no token.
        size, limit = len(path), max(row_tokens, len(path))
        start = end
        best = (cost[start] + size, start, size)
        while start > 0:
            size += len(paths[start - 1]) - shared[start]
            if size > limit:
                break
            start -= 1
            if cost[start] + size < best[0]:
                best = (cost[start] + size, start, size)
        cost.append(best[0])
        starts.append(best[1])
        sizes.append(best[2])
    pieces: list[_Piece] = []
    end = len(paths)
    while end > 0:
        pieces.append(_Piece(tuple(paths[starts[end] : end]), sizes[end]))
        end = starts[end]
    return pieces[::-1]


def _fill(pieces: Sequence[_Piece], row_tokens: int) -> Iterable[list[Path]]:
    """Paths of each row, sorted: every piece, largest first, goes into the first row with room."""
    rows: list[list[Path]] = []
    free: list[int] = []
    for piece in sorted(pieces, key=lambda piece: -piece.num_tokens):
        at = next((i for i, room in enumerate(free) if room >= piece.num_tokens), None)
        if at is None:
            rows.append(list(piece.paths))
            free.append(row_tokens - piece.num_tokens)
        else:
            rows[at].extend(piece.paths)
            free[at] -= piece.num_tokens
    return (sorted(row) for row in rows)


def _build_row(paths: Sequence[Path], by_path: Mapping[Path, Sequence[TrainSequence]]) -> PackedRow:
    token_ids: list[int] = []
    positions: list[int] = []
    parents: list[int] = []
    source_idx: list[int] = []
    trained: list[TrainSequence] = []
    previous: Path = ()
    at_depth: list[int] = []  # row index of the current path's token at each depth
    for path in paths:
        kept, start = _num_common(previous, path), len(token_ids)
        added = range(start, start + len(path) - kept)
        token_ids.extend(path[kept:])
        positions.extend(range(kept, len(path)))
        parents.append(at_depth[kept - 1] if kept else -1)
        parents.extend(added[:-1])
        at_depth[kept:] = added
        previous = path
        for sequence in by_path[path]:
            source_idx.extend([at_depth[index - 1] for index in sequence.target_idx])
            trained.append(sequence)
    return PackedRow(
        token_ids=tuple(token_ids),
        positions=tuple(positions),
        parents=tuple(parents),
        source_idx=tuple(source_idx),
        target_ids=tuple([item.token_ids[index] for item in trained for index in item.target_idx]),
        advantages=tuple([value for item in trained for value in item.advantages]),
        weights=tuple([value for item in trained for value in item.weights]),
        logprobs=tuple([value for item in trained for value in item.logprobs]),
        versions=tuple([value for item in trained for value in item.versions]),
        temperatures=tuple([value for item in trained for value in item.temperatures]),
        turns=_joined_if_given([item.turns for item in trained]),
        episodes=_joined_if_given([item.episodes for item in trained]),
        groups=_joined_if_given([item.groups for item in trained]),
        values=_joined_if_given([item.values for item in trained]),
        value_targets=_joined_if_given([item.value_targets for item in trained]),
        kept_ids=_joined(trained, [item.kept_ids for item in trained], ()),
        logit_processings=_joined(trained, [item.logit_processings for item in trained], None),
        origins=_joined(trained, [item.origins for item in trained], OWN),
        num_sequence_tokens=sum(len(item.token_ids) for item in trained),
    )


def _joined(trained: Sequence[TrainSequence], columns: Sequence[tuple[T, ...]], nothing: T) -> tuple[T, ...]:
    """The columns as one, with `nothing` for the targets of sequences whose column is empty; empty if all are."""
    if not any(columns):
        return ()
    whole = [column or (nothing,) * len(item.target_idx) for item, column in zip(trained, columns, strict=True)]
    return tuple([value for column in whole for value in column])


def _joined_if_given(columns: Sequence[tuple[T, ...] | None]) -> tuple[T, ...] | None:
    given = [column for column in columns if column is not None]
    if len(given) not in (0, len(columns)):
        raise InternalError(
            f"a column is given by {len(given)} of {len(columns)} sequences of a row; all must, or none"
        )
    return tuple([value for column in given for value in column]) if given else None


def is_among(token_id: int, rising_ids: Sequence[int]) -> bool:
    """Whether `token_id` is one of `rising_ids`."""
    at = bisect_left(rising_ids, token_id)
    return at < len(rising_ids) and rising_ids[at] == token_id


def _num_common(a: Path, b: Path) -> int:
    """Length of the common start, found by bisection so that whole slices are compared."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _columns(item: TrainSequence | PackedRow) -> list[Sequence[object]]:
    """The columns that have an entry for each target."""
    always = (item.advantages, item.weights, item.logprobs, item.versions, item.temperatures)
    optional = (item.turns, item.episodes, item.groups, item.values, item.value_targets)
    sparse = (item.kept_ids or None, item.logit_processings or None, item.origins or None)
    return [*always, *(column for column in (*optional, *sparse) if column is not None)]


def _check_lengths(length: int, *columns: Sequence[object]) -> None:
    if any(len(column) != length for column in columns):
        raise InternalError(f"parallel columns must have length {length}, got {[len(column) for column in columns]}")
