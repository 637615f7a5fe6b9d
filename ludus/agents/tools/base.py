"""Base class of tools, with verl's methods: `create`, `execute`, `calc_reward` and `release`.

Knows: one tool.  Knows not: who calls it, when, how often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from ludus.agents.tools.schema import OpenAIFunctionToolSchema, read_schema
from ludus.errors import UserError


@dataclass(slots=True)
class ToolResponse:
    """A tool's answer to the model. It can be changed, by code that overrides a step."""

    text: str | None = None
    """None: the model reads an empty text."""
    image: Sequence[Any] | None = None
    """Models here read no images: an answer with an image or a video is an error."""
    video: Sequence[Any] | None = None

    def is_empty(self) -> bool:
        return not (self.text or self.image or self.video)

    def is_text_only(self) -> bool:
        """Whether there is a text and nothing else."""
        return bool(self.text) and not (self.image or self.video)


class BaseTool:
    """A tool. One object serves a whole run; the state of one trajectory is an instance, identified by its id.

    For each trajectory that calls the tool, `create` is called once, before the first call; `calc_reward` and then
    `release` once, after the last. All methods run on one event loop: use a thread or a process for blocking work.
    """

    keeps_time = False
    """True: instead of being cancelled, `execute` gets its `timeout_s` and raises DeadlineError itself when the time is
    over. For tools that must get ready before their time begins."""
    max_concurrent: int | None = None
    """Most calls at a time, over all trajectories, unless the tool's file says otherwise. None: no limit."""

    def __init__(
        self, config: Mapping[str, Any] | None = None, tool_schema: OpenAIFunctionToolSchema | None = None
    ) -> None:
        """config: the `config` in the tool's file.  tool_schema: None: from `get_openai_tool_schema`."""
        self.config = dict(config or {})
        self.tool_schema = tool_schema
        schema = tool_schema or self.get_openai_tool_schema()
        if schema is None:
            raise UserError(
                f"{type(self).__name__} has no schema: give it `tool_schema`, or let get_openai_tool_schema return one"
            )
        self.tool_schema = read_schema(schema, f"the schema of {type(self).__name__}")
        self.name = self.tool_schema.function.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema | None:
        """The schema that the model is shown; called once."""
        return self.tool_schema

    async def setup(self) -> None:
        """Called once, on the agents' event loop, before the first episode of a run."""

    async def close(self) -> None:
        """Called once, after the last episode of a run."""

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Create an instance; returns its id. kwargs: the row's `create_kwargs`, both one by one and under that name.

        An override may return the id alone. The response is not shown to the model.
        """
        return instance_id or uuid4().hex, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        """Run one call; returns the answer, a reward for the call (None: none), and metrics.

        parameters: the call's arguments.  kwargs: the row's `execute_kwargs`, and `agent_data` of the trajectory.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `execute`")

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float | None:
        """The tool's reward for the whole trajectory. None: none."""
        return None

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """End the instance, however the trajectory ended."""
