"""A client of a training server: requests that survive a server's restart, errors that are what they were there.

Knows: HTTP, the wire, when to try again.  Knows not: models, trajectories, torch.
Rule: only what may be sent twice is sent again: what only looks, what comes to the same, and jobs, each of which has
a key that makes it one job however often it arrives.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx
import pydantic

from ludus.cluster.serve.wire import (
    IDEMPOTENCY_KEY,
    LAST_EVENT,
    ROOT,
    VERSION,
    ErrorView,
    Handshake,
    JobEvent,
    JobView,
    SubmitJob,
    check_idempotency_key,
    error_of,
)
from ludus.errors import BackendError, LudusError, UserError
from ludus.http.sse import coming_data
from ludus.http.tls import client_context

logger = logging.getLogger(__name__)

CONNECT_S = 5.0
READ_S = 120.0  # a server writes something into a stream of events every 15 s, and answers all else at once
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 5.0
AnswerT = TypeVar("AnswerT", bound=pydantic.BaseModel)
OnEvent = Callable[[JobEvent], None]


class ManagedServer(Protocol):
    """A server that was started for this client."""

    def check(self) -> None:
        """Raises BackendError if it has ended for good; called on a thread."""

    @property
    def why_unreachable(self) -> str | None:
        """Why it cannot be reached now. None: nothing is known against it."""


# What a proxy or a server that is just starting says; nothing was done.
_NOBODY_THERE = (502, 503, 504)


class ServerClient:
    """Asks the server at `base_url`. Used from one event loop at a time."""

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        patience_s: float,
        ca_file: Path | None = None,
        watched: ManagedServer | None = None,
    ) -> None:
        """patience_s: how long a server may be away before that is an error.

        ca_file: certificates to be trusted besides those of the system, PEM. None: only those.
        watched: tells whether the server still lives, where we started it. None: others see to it.
        """
        url = httpx.URL(base_url)
        if url.scheme not in ("http", "https") or not url.host:
            raise UserError(f"base_url={base_url!r} is no address of a server; it looks like http://host:7999")
        self.base_url = base_url.rstrip("/")
        self._headers = {"authorization": f"Bearer {api_key}"}
        self._patience_s = patience_s
        self._watched = watched
        if ca_file is not None and url.scheme != "https":
            raise UserError(f"ca_file cannot act with base_url={base_url!r}, which is plain HTTP; write https://")
        # Made once: reading the system's certificates takes longer than most requests.
        self.verify: ssl.SSLContext | bool = client_context(ca_file) if url.scheme == "https" else False
        """What connections to the server are checked with; False where they are not encrypted."""

    def __repr__(self) -> str:
        return f"ServerClient({self.base_url!r})"

    async def check_version(self) -> Handshake:
        """Raises UserError if the server does not speak our version, BackendError if nobody is there."""
        answer = await self._send("GET", "/api")
        try:
            handshake = Handshake.model_validate_json(answer.content)
        except pydantic.ValidationError:
            raise UserError(f"{self.base_url} is no training server; start one with `ludus serve`") from None
        if VERSION not in handshake.versions:
            raise UserError(
                f"the server at {self.base_url} ({handshake.server}) speaks {', '.join(handshake.versions)}, and this "
                f"client {VERSION}; install the same version of ludus on both machines"
            )
        return handshake

    async def get(self, form: type[AnswerT], path: str) -> AnswerT:
        return _read(form, await self._send("GET", ROOT + path))

    async def post(self, form: type[AnswerT], path: str, body: pydantic.BaseModel) -> AnswerT:
        """For what comes to the same when it is sent twice."""
        return _read(form, await self._send("POST", ROOT + path, content=body.model_dump_json()))

    async def notify(self, path: str, body: pydantic.BaseModel) -> None:
        """Once, whether anybody is there or not; for what the server finds out by itself later."""
        try:
            async with self._answer("POST", ROOT + path, content=body.model_dump_json()):
                pass
        except (httpx.TransportError, _AwayError) as error:
            logger.debug("notify.failed path=%s error=%r", path, error)

    async def run_job(
        self, model_path: str, job: SubmitJob, *, idempotency_key: str | None = None, on_event: OnEvent = lambda _: None
    ) -> Mapping[str, Any]:
        """The result of a job once it has one; `on_event` is called with what becomes of it until then.

        idempotency_key: None makes one.
        Raises the error that the job failed with, as the kind of error that it was there.
        """
        view = await self.submit(model_path, job, idempotency_key=idempotency_key)
        async for event in self.follow(view.id):
            on_event(event)
        ended = await self.get(JobView, f"/jobs/{view.id}")
        if ended.error is not None:
            raise error_of(ended.error)
        if ended.result is None:
            raise BackendError(f"the job {ended.id} was {ended.state}")
        return ended.result

    async def submit(self, model_path: str, job: SubmitJob, *, idempotency_key: str | None) -> JobView:
        """The job, which the server will do whatever happens to it or to us."""
        key = uuid.uuid4().hex if idempotency_key is None else check_idempotency_key(idempotency_key)
        headers = {IDEMPOTENCY_KEY: key}
        content = await asyncio.to_thread(job.model_dump_json)
        return _read(JobView, await self._send("POST", f"{ROOT}{model_path}/jobs", content=content, headers=headers))

    async def follow(self, job_id: str) -> AsyncIterator[JobEvent]:
        """The job's events from its first to its last, each once, however often the connection breaks."""
        after, patience = 0, self._patience()
        while True:
            try:
                asking = self._answer("GET", f"{ROOT}/jobs/{job_id}/events", headers={LAST_EVENT: str(after)})
                async with asking as answer:
                    async for data in coming_data(answer):
                        event = JobEvent.model_validate_json(data)
                        patience = self._patience()
                        after = event.number
                        yield event
                        if event.is_last:
                            return
            except httpx.TransportError as error:
                logger.debug("events.interrupted job=%s error=%r", job_id, error)
            except _AwayError as error:
                await patience.wait(error)
            else:  # the server closed the stream before the job had ended: it is being restarted
                await patience.wait(self._away("it closed the stream"))

    async def _send(
        self, method: str, path: str, *, content: str | None = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """The answer, if it is none of an error. Tries again while nobody is there."""
        patience = self._patience()
        while True:
            try:
                async with self._answer(method, path, content=content, headers=headers) as answer:
                    await answer.aread()
                    return answer
            except httpx.TransportError as error:
                away = self._unreached(error)
            except _AwayError as error:
                away = error
            await patience.wait(away)

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, *, content: str | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """The answer, if it is none of an error, before its body was read."""
        kind = {} if content is None else {"content-type": "application/json"}
        timeout = httpx.Timeout(READ_S, connect=CONNECT_S)
        # One client for each request: a client belongs to one event loop, and a script may have many in turn.
        async with httpx.AsyncClient(base_url=self.base_url, timeout=timeout, verify=self.verify) as http:
            asked = http.build_request(
                method, path, content=content, headers={**self._headers, **kind, **(headers or {})}
            )
            try:
                answer = await http.send(asked, stream=True)
            except httpx.TransportError as error:
                raise self._unreached(error) from error
            try:
                if answer.status_code in _NOBODY_THERE:
                    raise self._away(f"status {answer.status_code}")
                if not answer.is_success:
                    await answer.aread()
                    raise _error(answer)
                yield answer
            finally:
                await answer.aclose()

    def _patience(self) -> _Patience:
        return _Patience(self._patience_s, self._watched)

    def _unreached(self, error: httpx.TransportError) -> _AwayError:
        """What is raised if that lasts. Raises UserError if it will last for ever."""
        if _is_untrusted(error):
            raise UserError(
                f"the server at {self.base_url} is not trusted: {error}. Pass ca_file=… with the certificate of the "
                "authority that signed the server's"
            ) from error
        return self._away(f"{type(error).__name__}: {error}")

    def _away(self, why: str) -> _AwayError:
        behind = None if self._watched is None else self._watched.why_unreachable
        return _AwayError(
            f"the server at {self.base_url} cannot be reached ({behind or why}); start it with `ludus serve`, or "
            "correct base_url. A job that was sent is done when it is back"
        )


def _is_untrusted(error: BaseException | None) -> bool:
    """A certificate was refused; HTTP libraries wrap what the ssl module says."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None


class _AwayError(BackendError):
    """Nobody was there; raised when that lasts."""


class _Patience:
    """Waits longer each time, until it has run out."""

    def __init__(self, patience_s: float, watched: ManagedServer | None) -> None:
        self._watched = watched
        self._until = time.monotonic() + patience_s
        self._wait_s = FIRST_WAIT_S

    async def wait(self, error: _AwayError) -> None:
        """Raises `error` once there is no patience left, and at once why a server will not be back."""
        if self._watched is not None:
            await asyncio.to_thread(self._watched.check)
        if time.monotonic() + self._wait_s > self._until:
            raise error
        await asyncio.sleep(self._wait_s)
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)


def _read(form: type[AnswerT], answer: httpx.Response) -> AnswerT:
    try:
        return form.model_validate_json(answer.content)
    except pydantic.ValidationError as error:
        raise BackendError(f"{answer.request.url} answered what this client cannot read: {error}") from error


def _error(answer: httpx.Response) -> LudusError:
    try:
        view = ErrorView.model_validate(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return BackendError(f"{answer.request.url} answered {answer.status_code}: {answer.text[:200]}")
    return error_of(view, status=answer.status_code)
