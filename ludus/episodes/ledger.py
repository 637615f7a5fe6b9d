"""The ledger: every sampled token is trained once or masked for one named reason ("conservation").

Knows: counts and reasons.  Knows not: tokens, rewards.
Invariant, checked by `Ledger.check`: sampled == trained + the sum of masked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from ludus.errors import InternalError

MaskReason = Literal[
    "no_credit",  # the turn has no return
    "not_chosen",  # the conversation went on with another answer to the same prompt
    "not_paired",  # neither the best nor the worst of its group, or the other of the two has no token to train
    "zero_advantage",  # the group's returns are all equal: there is nothing to learn
    "rejected",  # the agent gave no reward
    "failed",  # the episode ended in an error
    "timeout",  # the episode ran out of time
    "cancelled",  # the episode was stopped from outside
    "lost",  # the process that played the episode was lost; the episode is played again
    "stale",  # sampled by weights that are older than allowed
    "kept_set",  # top-p, top-k or min-p kept more tokens than the record holds, so the distribution is unknown
    "greedy",  # temperature 0: not a sample
    "aborted",  # the client left in the middle of the turn
    "not_accepted",  # should_accept_fn refused the group
    "small_group",  # too few members of the group survived
    "truncated",  # the answer was cut off at the maximum length
    "no_baseline",  # the greedy member that the group is compared with is missing
    "too_long",  # beyond max_sequence_tokens
    "left_out",  # the agent excluded it from training
    "evaluation",  # sampled in an evaluation
    "unused",  # finished, but no training step took it
]
MASK_REASONS: tuple[MaskReason, ...] = get_args(MaskReason)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the sampled tokens of a turn, an episode, a batch or a run went."""

    sampled: int = 0
    trained: int = 0
    masked: Mapping[MaskReason, int] = field(default_factory=dict)
    replayed: int = 0
    """Tokens that were trained again in a later step. The balance counts them only in their first step."""
    demonstrated: int = 0
    """Trained tokens of demonstrations. The balance does not count them, for they were not sampled."""

    def __repr__(self) -> str:
        beside = {"replayed": self.replayed, "demonstrated": self.demonstrated}
        more = "".join(f", {name}={count}" for name, count in beside.items() if count)
        return f"Ledger(sampled={self.sampled}, trained={self.trained}, masked={dict(self.masked)}{more})"

    @classmethod
    def all_masked(cls, num_sampled: int, reason: MaskReason) -> Ledger:
        """The ledger of tokens that are all masked for one reason."""
        return cls(sampled=num_sampled, masked={reason: num_sampled} if num_sampled else {})

    @classmethod
    def sum(cls, ledgers: Iterable[Ledger]) -> Ledger:
        total = cls()
        for ledger in ledgers:
            total = total + ledger
        return total

    def __add__(self, other: Ledger) -> Ledger:
        masked = Counter(self.masked)
        masked.update(other.masked)
        beside = self.replayed + other.replayed, self.demonstrated + other.demonstrated
        return Ledger(self.sampled + other.sampled, self.trained + other.trained, dict(masked), *beside)

    @property
    def num_masked(self) -> int:
        return sum(self.masked.values())

    @property
    def unbalanced(self) -> int:
        """Sampled tokens that are not accounted for (positive) or counted twice (negative); must be 0."""
        return self.sampled - self.trained - self.num_masked

    def check(self) -> None:
        """Raises InternalError with the numbers if the ledger does not balance."""
        if self.unbalanced:
            raise InternalError(
                f"the ledger does not balance: sampled {self.sampled} != trained {self.trained} "
                f"+ masked {self.num_masked} {dict(self.masked)}; off by {self.unbalanced}"
            )
