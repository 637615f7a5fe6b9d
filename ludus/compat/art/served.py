"""Who asks a hosted model in this process: each rollout in a session of its own.

Knows: rollouts, keys of sessions.  Knows not: how a model is trained, tokens.
Invariant: every rollout is a session of its own; what asks outside of any rollout has one session for the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ludus.compat.art.hosted import HostedModel
from ludus.compat.art.rollout import Rollout, current_rollout
from ludus.compat.art.rollout_names import RolloutNames, member_name, outside_name
from ludus.episodes.handle import Handle, SessionSpec
from ludus.episodes.outcome import Told
from ludus.gateway.server import GatewayServer

_ENDED = "ended-rollout"


@dataclass(eq=False)
class ServedModel:
    """A model and the sessions in which it is asked."""

    hosted: HostedModel
    server: GatewayServer
    outside_key: str = field(init=False)
    """Of the session for whoever asks outside of rollouts."""
    _keys: dict[Rollout, str] = field(default_factory=dict)
    _names: RolloutNames = field(default_factory=RolloutNames)

    def __post_init__(self) -> None:
        _, self.outside_key = self._open_session(SessionSpec(outside_name(self.hosted.step)))

    def __repr__(self) -> str:
        return f"ServedModel({self.hosted!r}, rollouts={len(self._keys)})"

    def headers(self) -> Mapping[str, str]:
        """Of a request that is made now."""
        rollout = current_rollout()
        if rollout is None:
            return {}
        if rollout.has_ended:  # the gateway says to what it left running that its session has
            return {"authorization": f"Bearer {_ENDED}"}
        if rollout not in self._keys:
            self._keys[rollout] = self._open(rollout)
        return {"authorization": f"Bearer {self._keys[rollout]}"}

    def _open(self, rollout: Rollout) -> str:
        group_id = self._names.group(rollout, step=self.hosted.step)
        handle, key = self._open_session(SessionSpec(f"{group_id}-{member_name(rollout)}", group_id=group_id))

        async def end(error: BaseException | None) -> None:
            del self._keys[rollout]
            self.server.keys.release(handle)
            await self.hosted.episodes.end(handle, ending_of(error))

        rollout.on_end(end)
        return key

    def _open_session(self, spec: SessionSpec) -> tuple[Handle, str]:
        """A session that the gateway of all models reaches."""
        handle, key = self.hosted.episodes.open(spec)
        self.server.keys.bind(key, handle)
        return handle, key


def ending_of(error: BaseException | None) -> Told:
    """How a rollout ended that raised this. None: it returned."""
    if error is None:
        return Told("ok", "its rollout has ended")
    return Told("failed" if isinstance(error, Exception) else "cancelled", f"{type(error).__name__}: {error}")
