"""Maps what an agent returned to recorded turns: rows of tokens, or ids of turns of several sessions.

Knows: the record, token ids.  Knows not: whose format it was.
Invariant: only recorded tokens are trained. A row only says which of them, and with what reward.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ludus.episodes.reward import Result
from ludus.errors import UserError
from ludus.types import Node, SessionRecord, Turn


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A sequence of tokens, as an agent that works on token ids returns it."""

    token_ids: Sequence[int]
    mask: Sequence[bool | int]
    """For each token whether it is to be trained; it must then have been sampled by the model."""
    reward: Any = None
    """Of the whole row. None: it has none."""
    turn_ids: Collection[str] = ()
    """Turns that it is known to hold, which decide between turns with equal tokens. Empty: none is known."""

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.mask):
            raise UserError(
                f"a row has {len(self.token_ids)} token ids and a mask of {len(self.mask)}; they must match"
            )


@dataclass(frozen=True, slots=True)
class _Placed:
    """A recorded turn on its path."""

    turn_id: str
    start: int
    """Index of the first sampled token on the path from the root."""
    path: tuple[int, ...]
    """Token ids from the root to the turn's end."""
    nodes: frozenset[int]
    """The nodes on the path."""
    asked: tuple[float, int]
    """Orders turns as they were asked for, the choices of a request too, whichever was answered first."""


def claim_rows(
    record: SessionRecord,
    rows: Sequence[TokenRow],
    *,
    metrics: Mapping[str, float] | None = None,
    metadata: Mapping[str, Any] | None = None,
    are_returns: bool = False,
) -> Result:
    """The rows as a `Result`: the reward of a row is given to its last turn, from which credit goes back to the turns
    that led to it; sampled tokens that no row marks are left out of training.

    are_returns: the reward of a row is instead the return of every turn that it marks, and credit goes no further; a
    turn that several rows mark gets their mean.
    A row may end in the middle of an answer, and may hold several turns of one path. If several turns sampled the same
    tokens after the same prompt, a row holds only one of them: one that `turn_ids` names, or that is on a path with it;
    else the one that led to the row's next turn; else one that no other row holds, in the order in which they were
    asked for.
    Raises UserError if a marked token was not sampled at that place.
    """
    placed = _place(record)
    wanted: dict[str, set[int]] = {item.turn_id: set() for item in placed}
    given: dict[str, list[Any]] = {}
    for row_idx, (row, held) in enumerate(zip(rows, _held_turns(placed, rows), strict=True)):
        marked = _mark(row, row_idx, held, wanted)
        if row.reward is not None:
            if not held:
                raise UserError(f"row {row_idx} has the reward {row.reward!r} and holds no answer of the model")
            for turn_id in marked if are_returns else (held[-1].turn_id,):
                given.setdefault(turn_id, []).append(row.reward)
    rewards = {
        turn_id: math.fsum(map(float, values)) / len(values) if are_returns and len(values) > 1 else values[-1]
        for turn_id, values in given.items()
    }
    left_out = {
        item.turn_id: tuple(i for i in range(len(item.path) - item.start) if i not in wanted[item.turn_id])
        for item in placed
    }
    return Result(
        rewards,
        metrics or {},
        metadata or {},
        {turn_id: positions for turn_id, positions in left_out.items() if positions},
        are_returns,
    )


def _place(record: SessionRecord) -> list[_Placed]:
    placed = []
    for turn in record.turns:
        path = record.path_ids(turn.node)
        start = len(path) - len(turn.sampled.token_ids)
        asked = (turn.started_at, turn.sampling.seed or 0)  # seeds rise with the choices of a request
        placed.append(_Placed(turn.id, start, path, frozenset(_on_paths(record, [turn])), asked))
    return sorted(placed, key=lambda item: item.asked)


def _held_turns(placed: Sequence[_Placed], rows: Sequence[TokenRow]) -> list[list[_Placed]]:
    """The turns that each row holds, in order; at most one begins at each of its tokens."""
    num_holding: Counter[str] = Counter()
    held: list[list[_Placed]] = [[] for _ in rows]
    # Known turns first, then the longest rows: turns that follow say which of several equal turns a row holds.
    for row_idx in sorted(range(len(rows)), key=lambda at: (not rows[at].turn_ids, -len(rows[at].token_ids))):
        ids = tuple(rows[row_idx].token_ids)
        known = [item.nodes for item in placed if item.turn_id in rows[row_idx].turn_ids]
        by_start: dict[int, list[_Placed]] = {}
        for item in placed:
            end = min(len(ids), len(item.path))
            if end > item.start and ids[:end] == item.path[:end]:
                by_start.setdefault(item.start, []).append(item)
        later: frozenset[int] = frozenset()
        for start in sorted(by_start, reverse=True):
            chosen = min(
                by_start[start],
                key=lambda item: (
                    not any(item.nodes <= path or path <= item.nodes for path in known),
                    _preference(item, ids, later, num_holding[item.turn_id]),
                ),
            )
            num_holding[chosen.turn_id] += 1
            later |= chosen.nodes
            held[row_idx].insert(0, chosen)
    return held


def _preference(
    item: _Placed, ids: tuple[int, ...], later: frozenset[int], num_holding: int
) -> tuple[bool, int, bool, int]:
    """A sort key: a row of `ids` holds the turn with the smallest. later: nodes of its later turns."""
    return not item.nodes <= later, -min(len(ids), len(item.path)), len(item.path) > len(ids), num_holding


def _mark(row: TokenRow, row_idx: int, held: Sequence[_Placed], wanted: Mapping[str, set[int]]) -> list[str]:
    """The turns of which the row marks tokens; adds these tokens to `wanted`."""
    unexplained = {position for position, is_marked in enumerate(row.mask) if is_marked}
    touched: list[str] = []
    for item in held:
        marked = unexplained.intersection(range(item.start, len(item.path)))
        wanted[item.turn_id].update(position - item.start for position in marked)
        unexplained -= marked
        if marked:
            touched.append(item.turn_id)
    if unexplained:
        first = min(unexplained)
        raise UserError(
            f"row {row_idx} marks token {first} (id {row.token_ids[first]}) as one to be trained, and the model did not"
            f" sample it there; {len(unexplained)} such tokens in the row. Only tokens that were sampled in this "
            "episode, after the tokens that were before them then, can be trained"
        )
    return touched


@dataclass(frozen=True, slots=True)
class SessionTurns:
    """The turns of one session that belong to a trajectory."""

    record: SessionRecord
    turn_ids: Collection[str] | None
    """None: all of them."""


def join_records(record_id: str, parts: Sequence[SessionTurns]) -> SessionRecord:
    """One record of the turns of several sessions; paths, edges and order within each session are kept.

    The tokens of a turn that is left behind become context of the turns that extend them, and edges skip it.
    """
    nodes: list[Node] = []
    turns: list[Turn] = []
    for part in parts:
        wanted = frozenset(turn.id for turn in part.record.turns if part.turn_ids is None or turn.id in part.turn_ids)
        on_paths = _on_paths(part.record, [turn for turn in part.record.turns if turn.id in wanted])
        positions: dict[int, int] = {}
        for old in sorted(on_paths):  # a parent precedes its children
            node = part.record.nodes[old]
            positions[old] = len(nodes)
            parent = None if node.parent is None else positions[node.parent]
            kept_id = node.turn_id if node.turn_id in wanted else None
            nodes.append(Node(parent, node.token_ids, kept_id))
        turns.extend(_moved(part.record, wanted, positions))
    return SessionRecord(record_id, tuple(nodes), tuple(turns))


def _on_paths(record: SessionRecord, turns: Sequence[Turn]) -> set[int]:
    found: set[int] = set()
    for turn in turns:
        node: int | None = turn.node
        while node is not None and node not in found:
            found.add(node)
            node = record.nodes[node].parent
    return found


def _moved(record: SessionRecord, wanted: frozenset[str], positions: Mapping[int, int]) -> list[Turn]:
    by_id = {turn.id: turn for turn in record.turns}
    moved = []
    for turn in record.turns:
        if turn.id not in wanted:
            continue
        prefix, follows = turn.prefix, turn.follows
        while prefix is not None and prefix not in wanted:
            prefix = by_id[prefix].prefix
        while follows is not None and follows not in wanted:
            follows = by_id[follows].follows
        fork = turn.fork if follows is not None else None
        moved.append(replace(turn, node=positions[turn.node], prefix=prefix, follows=follows, fork=fork))
    return moved
