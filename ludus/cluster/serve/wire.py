"""What a client and a server of training say to each other: bodies, answers, events, errors.

Knows: the fields of version 1 of the protocol, and which error of Ludus each error on the wire is.
Knows not: sockets, what a job does.
Invariant: an error that one side raises on purpose is raised on the other as the same kind, with the same message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic

from ludus.errors import AgentError, BackendError, ConfigError, InternalError, LudusError, UserError
from ludus.http.body import Body

VERSION = "v1"
ROOT = f"/api/{VERSION}"
IDEMPOTENCY_KEY = "idempotency-key"
LAST_EVENT = "last-event-id"
LOAD = "load"
"""Parameter of the registration's URL; `false`: the model is not loaded, because it is to begin as a fork."""
SESSION = "x-ludus-session"
"""Header that names the session a request to a model belongs to, of the client's choice: CLIENT:GROUP/NAME for one
rollout, CLIENT:NAME for what several trajectories share. CLIENT tells one client's sessions from all others', and is no
part of what their seeds are made of."""
BEHIND_KEY = "#"
"""Between the server's key and such a name, for clients of models that can be given a key and no header."""
# One job may hold a thousand conversations of 60,000 tokens of text each.
MAX_JOB_BYTES = 256 * 2**20

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
EventKind = Literal["queued", "started", "progress", "succeeded", "failed", "cancelled"]
ENDS: tuple[JobState, ...] = ("succeeded", "failed", "cancelled")
"""States that no job leaves; the events of the same names are the last of a job."""
Name = Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


class RegisterModel(Body):
    """A model that is to be trained; the same again is the same model."""

    project: Name
    name: Name
    base_model: str
    config: dict[str, pydantic.JsonValue] = pydantic.Field(default_factory=dict)

    @property
    def internal_config(self) -> Mapping[str, Any]:
        """The same, by the name that backends have for it."""
        return self.config


class SubmitJob(Body):
    """Work on one model's weights. What `arguments` holds is the business of the kind of job."""

    kind: str
    arguments: dict[str, pydantic.JsonValue] = pydantic.Field(default_factory=dict)


class KeepCheckpoints(Body):
    """The steps whose checkpoints stay; the latest always does."""

    steps: list[Annotated[int, pydantic.Field(strict=True, ge=0)]]


class EndSession(Body):
    """A session of a model that gets no more requests."""

    session: str
    """As the header named it."""
    outcome: Literal["ok", "failed", "cancelled"] = "ok"
    """What became of the rollout."""
    reason: str = ""


class Handshake(pydantic.BaseModel):
    """What a server says of itself before anything else."""

    server: str
    versions: list[str]


class ModelView(pydantic.BaseModel):
    """A registered model."""

    project: str
    name: str
    base_model: str
    config: dict[str, Any]
    step: int | None
    """Steps trained; 0 is the base model. None: it is not loaded yet, and the same request later tells more."""
    inference_name: str
    inference_path: str
    """Below the server's address; its OpenAI-compatible API."""

    @classmethod
    def of(cls, model: RegisterModel, step: int | None) -> ModelView:
        path = f"/m/{model.project}/{model.name}/v1"
        return cls(**model.model_dump(), step=step, inference_name=model.name, inference_path=path)


class ModelList(pydantic.BaseModel):
    """The registered models."""

    models: list[ModelView]


class ErrorView(pydantic.BaseModel):
    """An error as it is sent."""

    type: str
    message: str
    code: str | None = None
    param: str | None = None


class JobView(pydantic.BaseModel):
    """A job as its owner may see it."""

    id: str
    project: str
    model: str
    kind: str
    state: JobState
    submitted_at: float
    started_at: float | None
    finished_at: float | None
    result: dict[str, Any] | None
    """None: it has not succeeded."""
    error: ErrorView | None
    """None: it has not failed."""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDS


class JobEvent(pydantic.BaseModel):
    """One step in the life of a job; `number` counts from 1 within the job, without gaps."""

    number: int
    kind: EventKind
    at: float
    data: dict[str, Any]

    @property
    def is_last(self) -> bool:
        return self.kind in ENDS

    def server_sent(self) -> bytes:
        """As a server-sent event, whose id is its number."""
        return f"id: {self.number}\nevent: {self.kind}\ndata: {self.model_dump_json()}\n\n".encode()


def check_idempotency_key(key: str) -> str:
    """The key. Raises AgentError for one that cannot stand in a header, or is longer than 200 characters."""
    if not re.fullmatch(r"[\x21-\x7e]{1,200}", key):
        raise AgentError(
            f"the idempotency key {key!r:.60} must be 1 to 200 printable ASCII characters without spaces, such as "
            "'run-7/step-12'",
            code="invalid_value",
            param=IDEMPOTENCY_KEY,
        )
    return key


# ---- errors

_TYPES: Mapping[str, type[LudusError]] = {
    "config_error": ConfigError,
    "user_error": UserError,
    "request_error": AgentError,
    "backend_error": BackendError,
    "internal_error": InternalError,
}
_STATUSES: Mapping[str, int] = {"config_error": 400, "user_error": 400, "backend_error": 503, "internal_error": 500}


def error_view(error: Exception) -> ErrorView:
    """How `error` is sent; what was not raised on purpose is ours."""
    for name, kind in _TYPES.items():
        if isinstance(error, kind):
            code, param = (error.code, error.param) if isinstance(error, AgentError) else (name, None)
            return ErrorView(type=name, message=str(error), code=code, param=param)
    return ErrorView(type="internal_error", message=f"{type(error).__name__}: {error}", code="internal_error")


def status_of(error: Exception) -> int:
    """The HTTP status that `error` is answered with."""
    return error.status if isinstance(error, AgentError) else _STATUSES[error_view(error).type]


def error_of(view: ErrorView, *, status: int = 400) -> LudusError:
    """The error that travelled; a type that this version does not know is the server's."""
    kind = _TYPES.get(view.type, InternalError)
    if kind is AgentError:
        return AgentError(view.message, status=status, code=view.code or "invalid_request", param=view.param)
    return kind(view.message)
