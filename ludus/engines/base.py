"""The Engine protocol: the interface between the recorder and whatever samples tokens.

Knows: calls, sampled tokens, versions.  Knows not: chat, templates, HTTP, trainers.

Rules for every engine, which `tests/engines/contract.py` checks for each of them:

1. `logprobs[i]` belongs to `token_ids[i]`, under the distribution the token was sampled from.
2. After `publish(v)` has returned, every new token carries a version >= v.
3. An aborted call returns the tokens sampled so far, with stop reason `abort`; none is lost but those that a server was
   told to send together later (`engine.stream_interval`).
4. `on_tokens` sees every token once, in order, before `generate` returns.
5. The same prompt, sampling parameters, seed and weights give the same tokens.
6. Under a grammar, the answer is a prefix of a text in the grammar; it is a complete one if its stop reason is `stop`
   and it was not ended by a stop string or stop id of the call. A grammar that cannot be compiled is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from ludus.errors import UserError
from ludus.types import Call, EngineStats, Sampled, TokenChunk

OnTokens = Callable[[TokenChunk], None]
"""Called on the event loop that awaits `generate`; must not block."""


def check_length(prompt_ids: Sequence[int], context_length: int, advice: str = "shorten the history") -> None:
    """Raises UserError for a prompt that leaves no room for a token."""
    if len(prompt_ids) >= context_length:
        raise UserError(
            f"the prompt has {len(prompt_ids)} tokens and must be shorter than the context of {context_length}; "
            f"{advice}"
        )


def check_call_id(call_id: str, running: Container[str]) -> None:
    """Raises UserError if a call with this id is running."""
    if call_id in running:
        raise UserError(f"call id {call_id!r} is running already; every call needs an id of its own")


def check_version(version: int, published: int) -> None:
    """Raises UserError unless `version` is newer than the published one."""
    if version <= published:
        raise UserError(f"version={version} must be greater than the published one, {published}")


class WeightSource(Protocol):
    """Provides the weights of a new version to an engine."""

    def named_tensors(self) -> Iterable[tuple[str, Any]]:
        """Name and tensor of every changed weight, with names as in the saved model."""

    def copy_into_shared(self) -> None:
        """Write the new weights into the tensors that trainer and engine share in one process."""


@runtime_checkable
class RankWeights(WeightSource, Protocol):
    """The weights of several ranks, of which each can send its own pieces to those that sample."""

    @property
    def num_ranks(self) -> int: ...

    def announce(self) -> Mapping[str, Any]:
        """What they are going to send: an `Announcement` (`ludus_vllm.packed`) as JSON values."""

    def join(self, name: str, addresses: Sequence[Mapping[str, Any]]) -> None:
        """Give every rank a group with all processes of one server; returns when all have joined.

        name: of these groups.  addresses: by rank, as of `ludus.trainer.broadcast.join`.
        """

    def broadcast(self, name: str, announced: Mapping[str, Any]) -> object:
        """Have every rank send its pieces in its group of that name."""

    def leave(self, name: str) -> None:
        """Have every rank leave that group, if it is in one."""


class Engine(Protocol):
    """Samples tokens for calls. Safe to use from several event loops and threads at once."""

    @property
    def context_length(self) -> int:
        """Most tokens of a sequence, prompt and answer together."""

    @property
    def shares_weights(self) -> bool:
        """Whether it samples with the very tensors that `WeightSource.copy_into_shared` writes; then all engines that
        share them change at once. False: it has weights of its own."""

    @property
    def shares_card(self) -> bool:
        """Whether its memory lies on the trainer's card, of which each has its turn: while it is paused, the card is
        the trainer's. False: the trainer may compute at any time."""

    async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
        """The sampled answer to `call`.

        Cancelling the awaiting task aborts the call. Raises BackendError if the engine failed, UserError if the call
        cannot be served (the prompt must be shorter than `context_length`).
        """

    async def abort(self, call_id: str) -> None:
        """End a running call; its `generate` returns the tokens sampled so far.

        Unknown ids are ignored: the call may have just ended.
        """

    async def publish(self, version: int, weights: WeightSource) -> None:
        """Sample with `weights` from now on. `version` must be greater than the previous one."""

    async def pause(self) -> None:
        """Stop sampling; returns once no token is being sampled. Calls wait until `resume`."""

    async def resume(self) -> None: ...

    async def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """The logprob of every token but the first, given the tokens before it, at temperature 1."""

    def stats(self) -> EngineStats: ...

    async def check(self) -> None:
        """Returns if the engine can serve, and raises BackendError if it cannot. A hanging engine does neither."""

    async def close(self) -> None:
        """Abort running calls and free all resources. Closing twice is allowed."""
