"""verl's tool for GSM8K: the model asks it what a tentative answer is worth, and may try again.

Knows: numbers, the solution that a row gives.  Knows not: the text of the conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from ludus.agents.tools.base import BaseTool, ToolResponse
from ludus.agents.tools.schema import OpenAIFunctionToolSchema, read_schema
from ludus.errors import UserError
from ludus.rewards.answers import as_number

_SCHEMA: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "calc_gsm8k_reward",
        "description": "Says whether a number answers the problem. 1.0: it does. 0.0: it does not.",
        "parameters": {
            "type": "object",
            "properties": {"answer": {"type": "string", "description": "The number, such as 42."}},
            "required": ["answer"],
        },
    },
}
_NO_BETTER = -0.05
"""What a call costs that does no better than those before it, as in verl: asking is not free."""


class Gsm8kTool(BaseTool):
    """`create_kwargs` of a row gives `ground_truth`. The trajectory earns 1 by a right answer, once."""

    def __init__(
        self, config: Mapping[str, Any] | None = None, tool_schema: OpenAIFunctionToolSchema | None = None
    ) -> None:
        super().__init__(config, tool_schema or read_schema(_SCHEMA, "the schema of the GSM8K tool"))
        self._solutions: dict[str, str] = {}
        self._rewards: dict[str, float] = {}

    async def create(
        self,
        instance_id: str | None = None,
        ground_truth: str | None = None,
        **kwargs: Any,
    ) -> tuple[str, ToolResponse]:
        """Raises UserError if the row gives no solution."""
        if ground_truth is None:
            raise UserError(f"{self.name} needs `ground_truth` in the row's tools_kwargs.{self.name}.create_kwargs")
        instance_id = instance_id or uuid4().hex
        self._solutions[instance_id], self._rewards[instance_id] = str(ground_truth), 0.0
        return instance_id, ToolResponse()

    async def execute(
        self,
        instance_id: str,
        parameters: dict[str, Any],
        **kwargs: Any,
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        answer = str(parameters.get("answer", ""))
        number = as_number(answer)
        reward = float(number is not None and number == as_number(self._solutions[instance_id]))
        cost = 0.0 if reward > self._rewards[instance_id] else _NO_BETTER
        self._rewards[instance_id] = max(reward, self._rewards[instance_id])
        return ToolResponse(text=f"Current parsed answer={answer!r} reward={reward}"), cost, {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return self._rewards[instance_id]

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        del self._solutions[instance_id], self._rewards[instance_id]
