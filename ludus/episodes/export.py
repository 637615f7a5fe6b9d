"""Turns a finished session and the credit of its turns into training sequences and a ledger.

Knows: the token graph, advantages, reasons to mask.  Knows not: rewards, text, rows.
Invariants: every sampled token is a target of exactly one sequence or is counted under one reason; both styles
train the same tokens after the same context, so after packing their gradients are equal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from ludus.algorithms.base import TokenAdvantages
from ludus.algorithms.pack import OWN, LogitProcessing, TrainSequence
from ludus.episodes.ledger import Ledger, MaskReason
from ludus.errors import InternalError
from ludus.types import SessionRecord, Turn

ExportStyle = Literal["individual", "concat"]
T = TypeVar("T")
_NOTHING: Mapping[str, Sequence[int]] = {}


@dataclass(frozen=True, slots=True)
class TurnCredit:
    """The credit of a turn: an advantage, or the reason why it is not trained. Exactly one is set."""

    advantage: float | TokenAdvantages | None
    """One for all its tokens, or one for each trainable token."""
    mask: MaskReason | None

    def __post_init__(self) -> None:
        if (self.advantage is None) == (self.mask is None):
            raise InternalError(f"a turn has an advantage or a reason to be masked, got {self}")
        if isinstance(self.advantage, float) and not math.isfinite(self.advantage):
            raise InternalError(f"an advantage must be finite, got {self.advantage}")

    @property
    def mean(self) -> float | None:
        """The mean advantage of its tokens. None: it is masked."""
        return self.advantage.mean if isinstance(self.advantage, TokenAdvantages) else self.advantage

    @property
    def teaches(self) -> bool:
        """Whether a token of it has an advantage other than 0."""
        return any(self.advantage.advantages) if isinstance(self.advantage, TokenAdvantages) else bool(self.advantage)


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of an episode, its first turn, and its group, in their batch."""

    episode: int = 0
    first_turn: int = 0
    group: int = 0

    def after(self, record: SessionRecord) -> Numbers:
        """The numbers of the next episode; the caller sets its group."""
        return Numbers(self.episode + 1, self.first_turn + len(record.turns))


@dataclass(frozen=True, slots=True)
class TokenBounds:
    """Which sampled tokens can be trained, whatever their credit. None, for each field: no bound."""

    stale_before: int | None = None
    """Tokens sampled by an older version than this are masked."""
    max_tokens: int | None = None
    """Tokens beyond this position on their path are masked."""
    whole_answers: bool = False
    """Answers that were cut off at the maximum length are masked."""


NO_BOUNDS = TokenBounds()


@dataclass(frozen=True, slots=True)
class Exported:
    sequences: tuple[TrainSequence, ...]
    ledger: Ledger
    places: Mapping[str, tuple[int, ...]]
    """By turn id: the indices of its trained tokens among those it sampled; turns without any are left out."""


@dataclass(frozen=True, slots=True)
class _TrainedTurn:
    """The trained part of a turn; it has at least one token."""

    turn: Turn
    index: int
    """Its index among the turns of its episode."""
    credit: TokenAdvantages
    """Of the chosen tokens."""
    start: int
    """Index of the first sampled token on the path from the root."""
    chosen: tuple[int, ...]
    """Indices into the turn's sampled tokens, rising."""


def export_session(
    record: SessionRecord,
    credit: Mapping[str, TurnCredit],
    *,
    weight: float,
    style: ExportStyle,
    bounds: TokenBounds = NO_BOUNDS,
    left_out: Mapping[str, Sequence[int]] = _NOTHING,
    numbers: Numbers = Numbers(),
    origin: int = OWN,
) -> Exported:
    """Training sequences of `record`, in which every trained token has `weight`, and the ledger of all its tokens.

    credit: one entry for each turn of the record.
    style: `individual` makes a sequence of each turn; `concat` makes one of each path from the root to a leaf, and
    tokens on several paths are trained in the first.
    left_out: indices of further sampled tokens to mask, by turn id.
    numbers: of the episode, its first turn and its group in their batch.
    origin: of its tokens.
    Raises InternalError if a turn has no credit, or the ledger does not balance.
    """
    trained, masked = _account(record, credit, bounds, left_out)
    by_node = {item.turn.node: item for item in trained}
    turns = [item.turn for item in trained]
    chains = ((turn,) for turn in turns) if style == "individual" else record.chains(turns)
    items = ([by_node[turn.node] for turn in chain] for chain in chains)
    sequences = tuple(_sequence(record, chain, weight, numbers, origin) for chain in items)
    # Counted from the sequences themselves, so that a token which a style lost or repeated shows.
    ledger = Ledger(record.num_sampled_tokens, sum(len(item.target_idx) for item in sequences), masked)
    ledger.check()
    return Exported(sequences, ledger, _places(trained))


def trained_places(
    record: SessionRecord,
    credit: Mapping[str, TurnCredit],
    *,
    bounds: TokenBounds = NO_BOUNDS,
    left_out: Mapping[str, Sequence[int]] = _NOTHING,
) -> dict[str, tuple[int, ...]]:
    """`Exported.places` of `export_session` with the same arguments."""
    return _places(_account(record, credit, bounds, left_out)[0])


def _places(trained: Sequence[_TrainedTurn]) -> dict[str, tuple[int, ...]]:
    return {item.turn.id: item.chosen for item in trained}


def _account(
    record: SessionRecord,
    credit: Mapping[str, TurnCredit],
    bounds: TokenBounds,
    left_out: Mapping[str, Sequence[int]],
) -> tuple[list[_TrainedTurn], dict[MaskReason, int]]:
    """The trained part of every turn that has one, and the number of all other sampled tokens by reason."""
    ends = record.path_lengths()
    trained: list[_TrainedTurn] = []
    masked: Counter[MaskReason] = Counter()
    for index, turn in enumerate(record.turns):
        if turn.id not in credit:
            raise InternalError(f"turn {turn.id} of session {record.id} has neither an advantage nor a reason")
        if record.nodes[turn.node].token_ids != turn.sampled.token_ids:
            raise InternalError(f"node {turn.node} of session {record.id} does not hold what turn {turn.id} sampled")
        advantage = credit[turn.id].advantage
        reason = credit[turn.id].mask or _turn_mask(turn, bounds)
        if reason is not None or advantage is None:
            masked[reason or "no_credit"] += len(turn.sampled.token_ids)
            continue
        start = ends[turn.node] - len(turn.sampled.token_ids)
        chosen: list[int] = []
        unwanted = frozenset(left_out.get(turn.id, ()))
        for i, version in enumerate(turn.sampled.versions):
            if i in unwanted:
                masked["left_out"] += 1
            elif bounds.max_tokens is not None and start + i >= bounds.max_tokens:
                masked["too_long"] += 1
            elif bounds.stale_before is not None and version < bounds.stale_before:
                masked["stale"] += 1
            elif turn.sampling.truncates and turn.sampled.kept_ids[i] is None:
                masked["kept_set"] += 1
            else:
                chosen.append(i)
        if chosen:
            trained.append(_TrainedTurn(turn, index, _by_token(advantage, chosen, turn), start, tuple(chosen)))
    return trained, {reason: count for reason, count in masked.items() if count}


def _by_token(advantage: float | TokenAdvantages, chosen: Sequence[int], turn: Turn) -> TokenAdvantages:
    """The advantage of each chosen token."""
    if not isinstance(advantage, TokenAdvantages):
        return TokenAdvantages((advantage,) * len(chosen))
    if len(advantage.advantages) != len(chosen):
        got = f"{len(advantage.advantages)} advantages of {len(chosen)} tokens that can be trained"
        raise InternalError(f"turn {turn.id} has {got}")
    return advantage


def _turn_mask(turn: Turn, bounds: TokenBounds) -> MaskReason | None:
    """Why nothing of this turn can be trained, whatever its credit. None: it can."""
    if turn.sampled.stop_reason == "abort":
        return "aborted"
    if bounds.whole_answers and turn.sampled.stop_reason == "length":
        return "truncated"
    if turn.sampling.is_greedy:
        return "greedy"
    if turn.sampling.truncates and not turn.sampled.kept_ids:
        return "kept_set"
    return None


def _walks_grammar(turn: Turn) -> bool:
    """Whether the trainer has to apply the turn's grammar again, because the record does not list all that it allowed.

    Inside free text a grammar allows most of the vocabulary, which is not listed. With top-p or top-k besides, what was
    kept cannot be computed again.
    """
    sampled, sampling = turn.sampled, turn.sampling
    is_listed = bool(sampled.kept_ids) and None not in sampled.kept_ids
    return sampling.grammar is not None and not sampling.truncates and not is_listed


def _sequence(
    record: SessionRecord, chain: Sequence[_TrainedTurn], weight: float, numbers: Numbers, origin: int
) -> TrainSequence:
    """The sequence up to the last trained token of `chain`, whose turns are on one path in this order."""
    target_idx = tuple(item.start + i for item in chain for i in item.chosen)
    return TrainSequence(
        # Tokens after the last trained one have no influence.
        token_ids=record.path_ids(chain[-1].turn.node)[: target_idx[-1] + 1],
        target_idx=target_idx,
        advantages=tuple(value for item in chain for value in item.credit.advantages),
        weights=(weight,) * len(target_idx),
        logprobs=tuple(item.turn.sampled.logprobs[i] for item in chain for i in item.chosen),
        versions=tuple(item.turn.sampled.versions[i] for item in chain for i in item.chosen),
        temperatures=tuple(item.turn.sampling.temperature for item in chain for _ in item.chosen),
        turns=tuple(numbers.first_turn + item.index for item in chain for _ in item.chosen),
        episodes=(numbers.episode,) * len(target_idx),
        groups=(numbers.group,) * len(target_idx),
        values=_joined([item.credit.values for item in chain]),
        value_targets=_joined([item.credit.value_targets for item in chain]),
        kept_ids=_if_any(tuple(kept for item in chain for kept in _kept_ids(item))),
        logit_processings=_if_any(
            tuple(
                logit_processing for item in chain for logit_processing in (_logit_processing(item),) * len(item.chosen)
            )
        ),
        origins=_if_any((origin,) * len(target_idx)),
    )


def _kept_ids(item: _TrainedTurn) -> list[tuple[int, ...]]:
    """For each chosen token the ids it was drawn from; empty for the whole vocabulary."""
    kept_ids = () if _walks_grammar(item.turn) else item.turn.sampled.kept_ids
    return [kept_ids[i] or () if kept_ids else () for i in item.chosen]


def _logit_processing(item: _TrainedTurn) -> LogitProcessing | None:
    """How the logits of the turn's tokens were changed. None: they were not."""
    sampling = item.turn.sampling
    grammar = sampling.grammar if _walks_grammar(item.turn) else None
    if not (sampling.penalises or sampling.logit_bias or grammar is not None):
        return None
    return LogitProcessing(
        answer_from=item.start,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=sampling.logit_bias,
        grammar=grammar,
    )


def _joined(columns: Sequence[tuple[T, ...] | None]) -> tuple[T, ...] | None:
    """The columns concatenated. None: there are none."""
    given = [column for column in columns if column is not None]
    assert len(given) in (0, len(columns)), "all turns of a batch have values, or none"
    return tuple(value for column in given for value in column) if given else None


def _if_any(column: tuple[T, ...]) -> tuple[T, ...]:
    """The column, or an empty one if all its entries are empty."""
    return column if any(column) else ()
