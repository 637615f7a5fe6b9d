"""What the head and a worker that plays its episodes send each other: JSON, no pickle.

Knows: assignments, endings, spans.  Knows not: HTTP, who waits for whom.
Invariant: what an agent returned means the same once received: numbers, mappings, `Result` and None arrive as
such, and of anything else comes what an error about it shows.
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
        """In ASCII. Python's JSON keeps what pydantic's does not: NaN, infinities, halves of a surrogate pair."""
        return json.dumps(self.model_dump())

    @classmethod
    def of_json(cls, text: str | bytes) -> Self:
        """What `to_json` wrote. Raises ValueError for anything else."""
        try:
            value = json.loads(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        return cls.model_validate(value)


class AssignmentBody(_Body):
    """One episode to play."""

    assignment_id: str
    """Names this playing of it."""
    agent: str
    """Which of the agents that the workers have."""
    data: dict[str, Any]
    base_url: str
    api_key: str
    info: EpisodeInfo
    left_s: float | None
    """Until its deadline. None: it has none."""


class TakeBody(_Body):
    """A worker's request for episodes."""

    index: int
    attempt: int
    """Of its process."""
    free: int
    """Slots that are ready for an episode now."""
    has: list[str]
    """Ids of the assignments that it plays."""
    number: int
    """Of this request among all that the process sends: one that comes late says what was true before."""


class TakenBody(_Body):
    """The answer to it."""

    assignments: list[AssignmentBody] = []
    cancelled: list[str] = []
    """Assignments that nobody waits for any more."""


class ReportBody(_Body):
    """How a playing ended."""

    index: int
    attempt: int
    assignment_id: str
    ending: Literal["returned", "raised"]
    value: Any = None
    """What was returned, as `to_wire` writes it."""
    trace: str = ""
    """Of what was raised; and so are the codes."""
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
    """Raises UserError if the row is no JSON."""
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
    """The fields of a report that state how an agent ended."""
    match ending:
        case Returned(value):
            return {"ending": "returned", "value": to_wire(value)}
        case Raised(trace, codes):
            return {"ending": "raised", "trace": whole_text(trace), "codes": whole_text(codes)}
        case _:
            return {"ending": "raised", "trace": f"the worker ended the episode: {ending}"}


def whole_text(text: str) -> str:
    """The text with halves of surrogate pairs, which models write and no file or terminal takes, spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


class OpaqueValue:
    """A value that was not sent; here it is shown as it was shown there."""

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def __repr__(self) -> str:
        return self._shown


def to_wire(value: object) -> Any:
    """The value as JSON, with its kind beside it."""
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
    """What `to_wire` was given. Raises UserError for what it never writes."""
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
    """Why the value is no JSON. None: it is."""
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        return error
    return None
