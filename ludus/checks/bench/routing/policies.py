"""Who gets a call: the router's own policy, and the two that one would write first.

Knows: calls, numbers of replicas.  Knows not: time, what replicas do with calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ludus.engines.routed.policy import Routing
from ludus.types import Call


class Policy(Protocol):
    """Places calls on replicas 0, 1, …"""

    def place(self, call: Call) -> int:
        """The replica that gets the call; it is there from now on."""

    def leave(self, call: Call, replica: int, token_ids: Sequence[int]) -> None:
        """The call has ended there, with this answer."""


class PrefixSticky:
    """The router's: sessions and siblings together, else least outstanding tokens."""

    def __init__(self, num_replicas: int, context_length: int) -> None:
        self._routing = Routing(context_length=context_length)
        for replica in range(num_replicas):
            self._routing.add(replica)

    def place(self, call: Call) -> int:
        replica = self._routing.choose(call, self._routing.replicas)
        self._routing.enter(call, replica)
        return replica

    def leave(self, call: Call, replica: int, token_ids: Sequence[int]) -> None:
        self._routing.leave(call.id, replica, token_ids)


class RoundRobin:
    """One after the other."""

    def __init__(self, num_replicas: int, context_length: int) -> None:
        self._num_replicas = num_replicas
        self._next = 0

    def place(self, call: Call) -> int:
        self._next += 1
        return (self._next - 1) % self._num_replicas

    def leave(self, call: Call, replica: int, token_ids: Sequence[int]) -> None: ...


class LeastRequests:
    """Where the fewest calls are."""

    def __init__(self, num_replicas: int, context_length: int) -> None:
        self._num_calls = [0] * num_replicas

    def place(self, call: Call) -> int:
        replica = self._num_calls.index(min(self._num_calls))
        self._num_calls[replica] += 1
        return replica

    def leave(self, call: Call, replica: int, token_ids: Sequence[int]) -> None:
        self._num_calls[replica] -= 1


POLICIES: Mapping[str, Callable[[int, int], Policy]] = {
    "Ludus": PrefixSticky,
    "least requests": LeastRequests,
    "round robin": RoundRobin,
}
