"""What a tool is: `create`, `execute`, `calc_reward` and `release`, as verl's users write them.

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
    """What a tool answers the model; who overrides a step may change it."""

    text: str | None = None
    """None: nothing, which the model reads as an empty text."""
    image: Sequence[Any] | None = None
    """No model here reads images: an answer that holds one is an error, as is one with a video."""
    video: Sequence[Any] | None = None

    def is_empty(self) -> bool:
        return not (self.text or self.image or self.video)

    def is_text_only(self) -> bool:
        """Whether there is a text, and nothing beside it."""
        return bool(self.text) and not (self.image or self.video)


class BaseTool:
    """A tool. One object serves a whole run; what belongs to one trajectory is an instance, known by its id.

    `create` is called once for each trajectory that calls the tool, before its first call; `calc_reward` and then
    `release` once, after its last. All of it runs on one event loop: what blocks belongs into a thread or a process.
    """

    keeps_time = False
    """True: `execute` is given its `timeout_s`, and raises DeadlineError when it is over, rather than being cancelled.
    For tools that must get ready before their time begins."""
    max_concurrent: int | None = None
    """Calls that run at a time, of all trajectories, where its file does not say. None: any number."""

    def __init__(
        self, config: Mapping[str, Any] | None = None, tool_schema: OpenAIFunctionToolSchema | None = None
    ) -> None:
        """config: what stands below `config` in the tool's file.  tool_schema: None: `get_openai_tool_schema` gives
        it."""
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
        """What the model is given of the tool; asked for once."""
        return self.tool_schema

    async def setup(self) -> None:
        """Once, on the agents' event loop, before the first episode of a run."""

    async def close(self) -> None:
        """Once, after the last episode of a run."""

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """The id of a new instance. kwargs: `create_kwargs` of the row, one by one and all under that name.

        The id alone may be returned too. The response is not shown to the model.
        """
        return instance_id or uuid4().hex, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        """What the tool answers, a reward for this call (None: none), and metrics.

        parameters: the call's arguments.  kwargs: `execute_kwargs` of the row, and `agent_data` of the trajectory.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `execute`")

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float | None:
        """What the whole trajectory earns by this tool. None: nothing to say."""
        return None

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Ends the instance, however the trajectory ended."""
