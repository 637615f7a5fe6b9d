"""`ServerBackend`: uses a remote server to serve and train models; needs neither torch nor a GPU on this machine.

Knows: the server's API, which rollout a request belongs to.  Knows not: weights, tokens.
Invariants: an acknowledged call is carried out exactly once, even if the server or this process restarts; tokens and
logprobs of choices are taken from the server's record, never from the client's data.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
import weakref
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ludus.cluster.remote import LaunchedServer, LaunchSettings, OnLine, target_of
from ludus.cluster.serve.client import ServerClient
from ludus.cluster.serve.wire import (
    BEHIND_KEY,
    LOAD,
    EndSession,
    JobEvent,
    KeepCheckpoints,
    ModelView,
    RegisterModel,
    SubmitJob,
)
from ludus.compat.art.backends import (
    AnyTraining,
    Backend,
    ForkArguments,
    InferenceEndpoint,
    OnProgress,
    TrainableSpec,
    TrainProgress,
    TrainResult,
)
from ludus.compat.art.rollout_sessions import RolloutSessions
from ludus.episodes.outcome import Reported
from ludus.errors import UserError

logger = logging.getLogger(__name__)

KEY_VARIABLE = "LUDUS_API_KEY"
PATIENCE_S = 600.0  # a restarted server takes minutes to load a large model
# With pauses of 0.5, 1, 2 … seconds, a request to a model survives a restart of a minute.
CONNECT_RETRIES = 7


class ServerBackend(Backend):
    """A `Backend` at `base_url`, where `ludus serve` runs."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        patience_s: float = PATIENCE_S,
        ca_file: str | Path | None = None,
        launched: LaunchedServer | None = None,
    ) -> None:
        """api_key: None: from the environment variable LUDUS_API_KEY.

        patience_s: how long the server may be unreachable, for instance during a restart, before that is an error.
        ca_file: PEM file with trusted certificates for https://. None: the system's.
        launched: a server that was started for this backend and ends with it; see `launch`. None: it is managed
        elsewhere.
        """
        key = os.environ.get(KEY_VARIABLE) if api_key is None else api_key
        if not key:
            raise UserError(f"a server wants its key: pass api_key=…, or set {KEY_VARIABLE}; `ludus serve` shows it")
        self._client = ServerClient(
            base_url,
            key,
            patience_s=patience_s,
            ca_file=None if ca_file is None else Path(ca_file),
            watched=launched,
        )
        self._launched = launched
        self._key = key
        self._has_met = False
        self._id = uuid.uuid4().hex[:12]
        """Distinguishes this client's sessions from those of others."""
        self._steps: dict[str, int] = {}
        """The last step reported by the server, by path of the model."""
        self._sessions: dict[str, RolloutSessions] = {}
        """Sessions of registered models, by path."""
        self._transports: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[Any]] = weakref.WeakKeyDictionary()
        """Transports to models, by the event loop on which they were made."""

    @classmethod
    async def launch(
        cls,
        on: str,
        settings: LaunchSettings | None = None,
        *,
        on_line: OnLine = logger.info,
        patience_s: float = PATIENCE_S,
        **options: Any,
    ) -> ServerBackend:
        """A backend with a server that is started on another machine, and ends with `close` or when it is idle.

        on: `ssh:HOST`, `local`, … (docs/cluster-remote.md).  settings or options: fields of `LaunchSettings`.
        on_line: called with lines of the server's log until it serves, and with its state in a queue.
        Raises BackendError, with the last lines of its log, if it does not start.
        """
        if settings is not None and options:
            raise UserError(f"pass settings or {', '.join(options)}, not both")
        chosen = LaunchSettings(**options) if settings is None else settings
        launched = LaunchedServer(target_of(on, chosen), chosen, on_line)
        await _open(launched)
        backend = cls(launched.base_url, launched.key, patience_s=patience_s, launched=launched)
        try:
            await backend._meet()
        except BaseException:
            await asyncio.shield(asyncio.to_thread(launched.undo))
            raise
        return backend

    def __repr__(self) -> str:
        return f"ServerBackend({self._client.base_url!r})"

    async def register(self, model: TrainableSpec) -> None:
        await self._register(model)

    async def prepare(self, model: TrainableSpec) -> InferenceEndpoint:
        view = await self._register(model)
        sessions = self._sessions[_path(model)]
        return InferenceEndpoint(
            base_url=self._client.base_url + view.inference_path,
            key=lambda: f"{self._key}{BEHIND_KEY}{sessions.now()}",
            inference_name=view.inference_name,
            transport=self._transport,
        )

    async def _train(
        self, model: TrainableSpec, asked: AnyTraining, on_progress: OnProgress, idempotency_key: str | None
    ) -> TrainResult:
        def on_event(event: JobEvent) -> None:
            if event.kind == "progress":
                on_progress(TrainProgress(**event.data))

        arguments = {
            **_without_logprobs(asked.model_dump(mode="json")),
            "config": asked.config.model_dump(mode="json", exclude_unset=True),
        }
        job = SubmitJob(kind=asked.kind, arguments=arguments)
        found = await self._client.run_job(_path(model), job, idempotency_key=idempotency_key, on_event=on_event)
        self._steps[_path(model)] = found["step"]
        return TrainResult(**found)

    async def get_step(self, model: TrainableSpec) -> int:
        while (step := (await self._client.get(ModelView, _path(model))).step) is None:
            pass  # as for `_register`
        return step

    async def delete_checkpoints(self, model: TrainableSpec, keep: Collection[int]) -> None:
        await self._client.post(ModelView, f"{_path(model)}/checkpoints", KeepCheckpoints(steps=sorted(keep)))

    async def _fork(self, model: TrainableSpec, asked: ForkArguments) -> int:
        await self._meet()
        await self._client.post(ModelView, f"/models?{LOAD}=false", _registration(model))
        job = SubmitJob(kind=asked.kind, arguments=asked.model_dump())
        return int((await self._client.run_job(_path(model), job))["step"])

    async def close(self) -> None:
        """Close the connections of this event loop; the server continues, unless it was launched by this backend."""
        for transport in self._transports.pop(asyncio.get_running_loop(), []):
            await transport.aclose()
        if self._launched is not None:
            await asyncio.to_thread(self._launched.close)

    # ---- inside

    def _transport(self, http: Any) -> Any:
        made = http.AsyncHTTPTransport(retries=CONNECT_RETRIES, verify=self._client.verify)
        self._transports.setdefault(asyncio.get_running_loop(), []).append(made)
        return made

    async def _meet(self) -> None:
        if not self._has_met:
            await self._client.check_version()
            self._has_met = True

    async def _register(self, model: TrainableSpec) -> ModelView:
        await self._meet()
        # The server answers after some seconds even if it is still loading, so that proxies do not time out.
        while (view := await self._client.post(ModelView, "/models", _registration(model))).step is None:
            pass
        path = _path(model)
        self._steps[path] = view.step
        if path not in self._sessions:

            async def end(session: str, ending: Reported) -> None:
                ended = EndSession.model_validate({"session": session, "outcome": ending.kind, "reason": ending.reason})
                await self._client.notify(f"{path}/sessions/end", ended)

            self._sessions[path] = RolloutSessions(lambda: self._steps[path], self._session, end)
        return view

    def _session(self, group_id: str | None, name: str) -> str:
        return f"{self._id}:{name}" if group_id is None else f"{self._id}:{group_id}/{name}"


async def _open(launched: LaunchedServer) -> None:
    """Open the server; if this is cancelled, the server is stopped."""
    opening = asyncio.ensure_future(asyncio.to_thread(launched.open))
    try:
        await asyncio.shield(opening)
    except asyncio.CancelledError:
        launched.give_up()
        (error,) = await asyncio.gather(opening, return_exceptions=True)
        if error is None:
            await asyncio.to_thread(launched.undo)
        raise


def _registration(model: TrainableSpec) -> RegisterModel:
    return RegisterModel(
        project=model.project, name=model.name, base_model=model.base_model, config=dict(model.internal_config)
    )


def _path(model: TrainableSpec) -> str:
    return f"/models/{model.project}/{model.name}"


def _without_logprobs(value: Any) -> Any:
    """The value without logprobs, which are exact in the server's record, and would be most of the data sent."""
    if isinstance(value, Mapping):
        is_choice = "message" in value and "logprobs" in value
        return {key: _without_logprobs(item) for key, item in value.items() if not (is_choice and key == "logprobs")}
    return [_without_logprobs(item) for item in value] if isinstance(value, list) else value
