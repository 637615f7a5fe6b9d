"""verl's simulated user for GSM8K: a teacher who says whether the answer is right.

Knows: the solution that a row gives.  Knows not: how the model is asked.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from ludus.compat.verl.data_sources import gsm8k
from ludus.compat.verl.interaction import BaseInteraction
from ludus.errors import UserError

_RIGHT = "Your response is correct!"
_WRONG = "Your response is incorrect! You need to reflect on your answer and try again."


class Gsm8kInteraction(BaseInteraction):
    """`interaction_kwargs` of a row gives `ground_truth`. An answer earns 1 if its number behind `####` is right."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._solutions: dict[str, str] = {}

    async def start_interaction(
        self,
        instance_id: str | None = None,
        ground_truth: str | None = None,
        **kwargs: Any,
    ) -> str:
        """Raises UserError if the row gives no solution."""
        if ground_truth is None:
            raise UserError(f"{self.name} needs `ground_truth` in the row's extra_info.interaction_kwargs")
        instance_id = instance_id or uuid4().hex
        self._solutions[instance_id] = str(ground_truth)
        return instance_id

    async def generate_response(
        self,
        instance_id: str,
        messages: list[dict[str, Any]],
        **kwargs: Any,
    ) -> tuple[bool, str, float, dict[str, Any]]:
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        answer = str(answers[-1] or "") if answers else ""
        marked = answer if "####" in answer else f"#### {answer}"
        score = await gsm8k(marked, self._solutions[instance_id])
        return score == 1.0, _RIGHT if score == 1.0 else _WRONG, score, {}

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        self._solutions.pop(instance_id, None)
