"""Trajectories: an agent's own report of a run, with messages and choices, a reward, metrics and metadata.

Knows: what a user writes into it.  Knows not: tokens, sessions, groups.
Invariant: a choice of a recorded turn is trained, a mapping is context; the order of the list is the conversation.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from time import perf_counter
from typing import Any, Self

import pydantic

from ludus.compat.art.choice import Messages, Tools, check_item, is_choice, message_of, sampled_by, to_json, turn_id

logger = logging.getLogger(__name__)

Scalar = float | int | str | bool | None


class History(pydantic.BaseModel):
    """One linear conversation. Unknown arguments are dropped with a warning, as of a trajectory."""

    model_config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True, validate_assignment=True)

    messages_and_choices: list[Any] = pydantic.Field(default_factory=list)
    """Messages as mappings, which are context, and choices, which are trained."""
    tools: Tools | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _leave_out_unknown(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or not (unknown := sorted(given.keys() - cls.model_fields.keys())):
            return given
        logger.warning("%s has no %s: left out; a value to keep goes into metadata", cls.__name__, ", ".join(unknown))
        return {name: value for name, value in given.items() if name in cls.model_fields}

    @pydantic.field_validator("messages_and_choices")
    @classmethod
    def _check_items(cls, items: list[Any]) -> list[Any]:
        return [check_item(item, f"messages_and_choices[{idx}]") for idx, item in enumerate(items)]

    @pydantic.field_serializer("messages_and_choices")
    def _write_items(self, items: list[Any]) -> list[dict[str, Any]]:
        return [to_json(item) for item in items]

    def messages(self) -> Messages:
        """All items as messages for the next request."""
        return [message_of(item) for item in self._checked()]

    def choices(self) -> list[Any]:
        """The choices, in order."""
        return [item for item in self._checked() if is_choice(item)]

    def turn_ids(self, model: str | None = None) -> list[str]:
        """Ids of the recorded turns of choices, in order. model: leaves out choices sampled by another model."""
        mine = (each for each in self.choices() if model is None or sampled_by(each) in (None, model))
        return [found for found in map(turn_id, mine) if found is not None]

    def _checked(self) -> Iterator[Any]:
        # Items appended to the list are not validated, so they are checked here.
        for idx, item in enumerate(self.messages_and_choices):
            yield check_item(item, f"messages_and_choices[{idx}]")


class Trajectory(History):
    """A run of an agent, and its reward."""

    additional_histories: list[History] = pydantic.Field(default_factory=list)
    """Conversations besides the main one: sub-agents, other branches, the history before a summary."""
    reward: float = 0.0
    initial_policy_version: int | None = None
    """Version of the weights that sampled first. None: not known yet; training sets this field and the next."""
    final_policy_version: int | None = None
    metrics: dict[str, float | int | bool] = pydantic.Field(default_factory=dict)
    """Averaged over trajectories."""
    metadata: dict[str, Scalar] = pydantic.Field(default_factory=dict)
    """Stored with the trajectory, never averaged."""
    logs: list[str] = pydantic.Field(default_factory=list)
    start_time: datetime = pydantic.Field(default_factory=datetime.now, exclude=True)
    """Without a time zone, as in ART."""

    def __repr__(self) -> str:
        return f"Trajectory(reward={self.reward}, choices={sum(len(each.choices()) for each in self.histories())})"

    __str__ = __repr__

    @pydantic.field_serializer("metrics", "metadata")
    def _write_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return plain_values(values)

    def histories(self) -> list[History]:
        """The main conversation, which is the trajectory itself, and the additional ones."""
        return [self, *self.additional_histories]

    def log(self, message: str) -> None:
        """Add a line to the trajectory's logs."""
        self.logs.append(message)

    def finish(self) -> Self:
        """Set the metric `duration`, the seconds since the trajectory was made; returns the trajectory."""
        self.metrics["duration"] = (datetime.now(self.start_time.tzinfo) - self.start_time).total_seconds()
        return self

    @asynccontextmanager
    async def track_duration(self, metric_name: str) -> AsyncIterator[None]:
        """Add the block's seconds to the metric `<metric_name>_duration`."""
        began_s = perf_counter()
        try:
            yield
        finally:
            key = f"{metric_name}_duration"
            self.metrics[key] = self.metrics.get(key, 0.0) + perf_counter() - began_s

    def for_logging(self) -> dict[str, Any]:
        """JSON-able values for a file: reward, metrics, metadata, logs, tools, and the messages of every history,
        marked `trainable` if sampled by a model of Ludus."""
        return {
            "reward": self.reward,
            "metrics": dict(self.metrics),
            "metadata": dict(self.metadata),
            "logs": list(self.logs),
            "tools": self.tools,
            "messages": _marked(self),
            "additional_histories": [
                {"messages": _marked(each), "tools": each.tools} for each in self.additional_histories
            ],
        }


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values for JSON. What was put into a mapping later is not validated: numbers of numpy and torch become
    Python's."""
    return {name: value.item() if callable(getattr(value, "item", None)) else value for name, value in values.items()}


def _marked(history: History) -> list[dict[str, Any]]:
    return [
        {**message_of(item), "trainable": is_choice(item) and turn_id(item) is not None}
        for item in history.messages_and_choices
    ]
