"""Which of several replicas serves a call: the one that knows its prefix, that of its siblings, or the least busy.

Knows: calls, token ids, counts.  Knows not: engines, event loops, time.
Invariants: the outstanding tokens of a replica are the sum over the calls that entered it and did not leave; a call
enters one replica at a time; what is remembered of prefixes and homes is bounded, and forgetting it costs time alone.

A call goes, of the replicas that may serve it,
1. home: where the last call of its session went, else the last one of its group, so that a session finds its own keys
   and values and siblings compute their prompt once; unless home is so far behind that the call would wait longer
   than computing a prompt takes (`spill_tokens`);
2. else where it costs least: outstanding tokens, and the tokens of its prompt that are not known there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from ludus.engines.base import check_call_id
from ludus.errors import UserError
from ludus.types import Call

# As the pages of our engine: shorter prefixes are not shared by any.
BLOCK_TOKENS = 16
# Blocks that one replica is remembered to know: a million tokens, more than most caches of keys and values hold.
MAX_BLOCKS = 2**16
# Sessions and groups whose home is remembered: more than ever play at once.
MAX_HOMES = 2**16
# By how many answers of full length a home may be behind: two groups of eight.
SPILL_ANSWERS = 16


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """What one replica has to do, as far as it was sent there."""

    num_calls: int
    num_tokens: int
    """Outstanding: prompts and the longest possible answers of these calls."""


@dataclass(slots=True)
class _Replica:
    outstanding: dict[str, _Entered] = field(default_factory=dict)
    """By call id."""
    num_tokens: int = 0
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)
    """Digests of the prefixes it knows, the latest used last."""


@dataclass(frozen=True, slots=True)
class _Entered:
    call: Call
    digests: tuple[int, ...]
    num_tokens: int


class Routing:
    """The state of a router: what each replica was sent, and where prefixes, sessions and groups are. Not thread-safe.

    spill_tokens: a home with more outstanding tokens than this above the least busy replica is passed over. None: 16
    answers of full length.
    """

    def __init__(self, *, context_length: int, spill_tokens: int | None = None) -> None:
        if spill_tokens is not None and spill_tokens < 0:
            raise UserError(f"spill_tokens={spill_tokens} must be 0 or more")
        self._context_length = context_length
        self._spill_tokens = SPILL_ANSWERS * context_length if spill_tokens is None else spill_tokens
        self._replicas: dict[int, _Replica] = {}
        self._holders: dict[int, set[int]] = {}
        """Replicas that know a prefix of one block, by its digest: all others know no prompt that begins with it."""
        self._homes: OrderedDict[tuple[str, str], int] = OrderedDict()
        """By ('session', id) and ('group', id), the latest used last."""

    def __repr__(self) -> str:
        loads = {replica: self.load(replica).num_tokens for replica in self._replicas}
        return f"Routing(outstanding={loads}, homes={len(self._homes)})"

    @property
    def replicas(self) -> tuple[int, ...]:
        return tuple(self._replicas)

    def load(self, replica: int) -> ReplicaLoad:
        known = self._replicas[replica]
        return ReplicaLoad(len(known.outstanding), known.num_tokens)

    def add(self, replica: int) -> None:
        """A replica that knows no prefix and has nothing to do."""
        if replica in self._replicas:
            raise UserError(f"replica {replica} is there already; there are {sorted(self._replicas)}")
        self._replicas[replica] = _Replica()

    def remove(self, replica: int) -> tuple[str, ...]:
        """The ids of the calls that were there; they and all that was home there may enter elsewhere."""
        self.forget_prefixes(replica)
        gone = self._replicas.pop(replica)
        self._homes = OrderedDict((key, home) for key, home in self._homes.items() if home != replica)
        return tuple(gone.outstanding)

    def forget_prefixes(self, replica: int) -> None:
        """New weights: the replica holds no keys and values that a new call could use."""
        self._replicas[replica].blocks.clear()
        for digest in [digest for digest, holders in self._holders.items() if replica in holders]:
            self._no_longer_holds(replica, digest)

    def choose(self, call: Call, among: Collection[int]) -> int:
        """The replica of `among` that should serve `call`; nothing is changed."""
        known = self._replicas.keys() & among
        assert known, "a call is placed among replicas that exist"
        num_tokens, least_busy = min((self._replicas[replica].num_tokens, replica) for replica in known)
        for key in _keys(call):
            home = self._homes.get(key)
            if home in known and self._replicas[home].num_tokens - num_tokens <= self._spill_tokens:
                return home
        digests = block_digests(call.prompt_ids)
        # of those that do not know how the prompt begins, none costs less than the least busy one
        holders = self._holders.get(digests[0], set()) & known if digests else set()
        return min({*holders, least_busy}, key=lambda replica: (self._cost(replica, digests), replica))

    def enter(self, call: Call, replica: int) -> None:
        """`call` is sent to `replica`, which is from now on the home of its session and its group."""
        check_call_id(call.id, self._replicas[replica].outstanding)
        num_tokens = len(call.prompt_ids) + call.num_new_tokens(self._context_length)
        digests, known = tuple(block_digests(call.prompt_ids)), self._replicas[replica]
        known.outstanding[call.id] = _Entered(call, digests, num_tokens)
        known.num_tokens += num_tokens
        self._learn(replica, digests)
        for key in _keys(call):
            self._homes[key] = replica
            self._homes.move_to_end(key)
        while len(self._homes) > MAX_HOMES:
            self._homes.popitem(last=False)

    def leave(self, call_id: str, replica: int, token_ids: Sequence[int] = ()) -> None:
        """The call has ended or failed there. token_ids: its answer, which the replica knows from now on too."""
        known = self._replicas.get(replica)
        if known is None:
            return  # it was removed meanwhile
        entered = known.outstanding.pop(call_id)
        known.num_tokens -= entered.num_tokens
        start = len(entered.digests) * BLOCK_TOKENS
        tail = (*entered.call.prompt_ids[start:], *token_ids)
        self._learn(replica, (*entered.digests, *block_digests(tail, after=entered.digests[-1:])))

    def _cost(self, replica: int, digests: Sequence[int]) -> int:
        num_unknown = len(digests) - self._num_known(replica, digests)
        return self._replicas[replica].num_tokens + num_unknown * BLOCK_TOKENS

    def _num_known(self, replica: int, digests: Sequence[int]) -> int:
        blocks = self._replicas[replica].blocks
        return next((idx for idx, digest in enumerate(digests) if digest not in blocks), len(digests))

    def _learn(self, replica: int, digests: Sequence[int]) -> None:
        """digests: from the first token of a prompt on."""
        if digests:
            self._holders.setdefault(digests[0], set()).add(replica)
        blocks = self._replicas[replica].blocks
        for digest in reversed(digests):  # what many share is used last, and so forgotten last
            blocks[digest] = None
            blocks.move_to_end(digest)
        while len(blocks) > MAX_BLOCKS:
            self._no_longer_holds(replica, blocks.popitem(last=False)[0])

    def _no_longer_holds(self, replica: int, digest: int) -> None:
        holders = self._holders.get(digest)
        if holders is not None:
            holders.discard(replica)
            if not holders:
                del self._holders[digest]


def _keys(call: Call) -> Iterator[tuple[str, str]]:
    """What a call may have a home by, the closest first."""
    yield ("session", call.session_id)
    if call.group_id is not None:
        yield ("group", call.group_id)


def block_digests(token_ids: Sequence[int], after: Sequence[int] = ()) -> list[int]:
    """One number for each whole block, which stands for all tokens up to its end.

    after: the digest of the block before. Two prefixes may share a number; then a call goes where it costs more.
    """
    digests: list[int] = []
    digest = after[0] if after else 0
    for end in range(BLOCK_TOKENS, len(token_ids) + 1, BLOCK_TOKENS):
        digest = hash((digest, *token_ids[end - BLOCK_TOKENS : end]))
        digests.append(digest)
    return digests
