"""The messages between the head and the workers that play its episodes: JSON, no pickle.

Knows: assignments, endings, spans.  Knows not: HTTP, who waits for whom.
Invariant: an agent's value means the same when received: numbers, mappings, `Result` and None arrive unchanged; of any
other value only its text arrives, for error messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, Self, SupportsFloat

import pydantic

from ludus.agents.adapter import EpisodeInfo
from ludus.episodes.outcome import Ending, Raised, Returned
from ludus.episodes.reward import Result
from ludus.errors import UserError
from ludus.runs.codec import plain
from ludus.types import Span


class _Body(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    def to_json(self) -> str:
        """As ASCII. Python's JSON keeps what pydantic's does not: NaN, infinities, lone surrogates."""
        return json.dumps(self.model_dump())

    @classmethod
    def of_json(cls, text: str | bytes) -> Self:
        """From the text of `to_json`. Raises ValueError for anything else."""
        try:
            value = json.loads(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        return cls.model_validate(value)


class AssignmentBody(_Body):
    """One episode to play."""

    assignment_id: str
    """Id of this attempt to play it."""
    agent: str
    """Label of one of the agents that the workers have set up."""
    data: dict[str, Any]
    base_url: str
    api_key: str
    info: EpisodeInfo
    left_s: float | None
    """Seconds until its deadline. None: it has none."""


class TakeBody(_Body):
    """A worker's request for episodes."""

    index: int
    attempt: int
    """Start number of the worker's process."""
    free: int
    """Number of slots that are ready for an episode."""
    has: list[str]
    """Ids of the assignments that it is playing."""
    number: int
    """Number of this request among those of the process, by which one that arrives late is recognised as outdated."""


class TakenBody(_Body):
    """The answer to a request for episodes."""

    assignments: list[AssignmentBody] = []
    cancelled: list[str] = []
    """Ids of assignments that were cancelled."""


class ReportBody(_Body):
    """How an assignment ended."""

    index: int
    attempt: int
    assignment_id: str
    ending: Literal["returned", "raised"]
    value: Any = None
    """The returned value, in the form of `to_wire`."""
    trace: str = ""
    """Traceback of what was raised; `codes` are its error codes."""
    codes: str = ""
    spans: list[dict[str, Any]] = []
    agent_metrics: dict[str, list[float]] = {}

    def read_ending(self) -> Returned | Raised:
        return Returned(from_wire(self.value)) if self.ending == "returned" else Raised(self.trace, self.codes)

    def read_spans(self) -> tuple[Span, ...]:
        return tuple(Span(**span) for span in self.spans)


def assignment_body(
    assignment_id: str,
    agent: str,
    data: Mapping[str, Any],
    base_url: str,
    api_key: str,
    info: EpisodeInfo,
    left_s: float | None = None,
) -> AssignmentBody:
    """The message for one episode. Raises UserError if the row cannot be written as JSON."""
    if (fault := json_fault(data)) is not None:
        columns = [name for name, value in data.items() if json_fault(value) is not None]
        raise UserError(
            f"the row of {info.episode_id} cannot be sent to a rollout worker as JSON: {', '.join(map(str, columns))}: "
            f"{fault}; give plain values, or play without workers (rollout.agent.workers=0)"
        )
    return AssignmentBody(
        assignment_id=assignment_id,
        agent=agent,
        data=dict(data),
        base_url=base_url,
        api_key=api_key,
        info=info,
        left_s=left_s,
    )


def ending_fields(ending: Ending) -> dict[str, Any]:
    """The fields of a report that describe `ending`."""
    match ending:
        case Returned(value):
            return {"ending": "returned", "value": to_wire(value)}
        case Raised(trace, codes):
            return {"ending": "raised", "trace": whole_text(trace), "codes": whole_text(codes)}
        case _:
            return {"ending": "raised", "trace": f"the worker ended the episode: {ending}"}


def whole_text(text: str) -> str:
    """The text with lone surrogates escaped: models write them, and no file or terminal takes them."""
    return text.encode("utf-8", "backslashreplace").decode()


class OpaqueValue:
    """Stands for a value that was not sent; its repr is that of the original."""

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def __repr__(self) -> str:
        return self._shown


def to_wire(value: object) -> Any:
    """The value as JSON, tagged with its kind."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return {"tuple": [to_wire(part) for part in value]}
    if isinstance(value, Result):
        parts = {each.name: getattr(value, each.name) for each in fields(Result)}
        return {"result": {**{name: plain(part) for name, part in parts.items()}, "reward": to_wire(value.reward)}}
    if isinstance(value, Mapping):
        return {"mapping": {str(key): to_wire(part) for key, part in value.items()}}
    if isinstance(value, SupportsFloat) and not isinstance(value, bytes):
        try:
            return {"number": float(value)}
        except (TypeError, ValueError, RuntimeError):  # such as a tensor of many numbers
            pass
    return {"foreign": f"{value!r:.200} of type {type(value).__name__}"}


def from_wire(value: Any) -> object:
    """The value that `to_wire` was given. Raises UserError for anything that `to_wire` never writes."""
    if value is None or isinstance(value, str):
        return value
    match value:
        case {"tuple": list(parts)}:
            return tuple(from_wire(part) for part in parts)
        case {"result": dict(parts)}:
            return Result(**{**parts, "reward": from_wire(parts["reward"])})
        case {"mapping": dict(parts)}:
            return {key: from_wire(part) for key, part in parts.items()}
        case {"number": int() | float() as number}:
            return float(number)
        case {"foreign": str(shown)}:
            return OpaqueValue(shown)
    raise UserError(f"a worker returned {value!r:.200}, which is no value of an agent")


def json_fault(value: object) -> Exception | None:
    """Why the value cannot be written as JSON. None: it can."""
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        return error
    return None
