"""verl's simulated user for GSM8K: a teacher who says whether the answer is right.

Knows: the solution that a row gives.  Knows not: how the model is asked.
"""

from __future__ import annotations

import importlib
from typing import Any
from uuid import uuid4

from ludus.compat.verl.interaction import BaseInteraction
from ludus.errors import UserError

_RIGHT = "Your response is correct!"
_WRONG = "Your response is incorrect! You need to reflect on your answer and try again."


class Gsm8kInteraction(BaseInteraction):
    """`interaction_kwargs` of a row gives `ground_truth`. An answer earns 1 if its number behind `####` is right."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._instance_dict: dict[str, dict[str, Any]] = {}
        """By instance its `response`, `ground_truth` and `reward`, as verl's own keeps them for classes derived of
        it."""

    async def start_interaction(
        self,
        instance_id: str | None = None,
        ground_truth: str | None = None,
        **kwargs: Any,
    ) -> str:
        instance_id = instance_id or str(uuid4())
        self._instance_dict[instance_id] = {"response": "", "ground_truth": ground_truth, "reward": 0.0}
        return instance_id

    async def generate_response(
        self,
        instance_id: str,
        messages: list[dict[str, Any]],
        **kwargs: Any,
    ) -> tuple[bool, str, float, dict[str, Any]]:
        answers = [message.get("content") for message in messages if message["role"] == "assistant"]
        self._instance_dict[instance_id]["response"] = answers[-1] if answers else ""
        score = self._instance_dict[instance_id]["reward"] = await self.calculate_score(instance_id)
        return score == 1.0, _RIGHT if score == 1.0 else _WRONG, score, {}

    async def calculate_score(self, instance_id: str, **kwargs: Any) -> float:  # type: ignore[override]  # as in verl
        """1 if the number behind `####` of the last answer is right, else 0. Raises UserError if the row gives no
        solution."""
        instance = self._instance_dict[instance_id]
        if instance["ground_truth"] is None:
            raise UserError(f"{self.name} needs `ground_truth` in the row's extra_info.interaction_kwargs")
        # looked up by verl's name, under which code of the user's may have replaced it
        compute_score = importlib.import_module("ludus.compat.verl.utils.reward_score.gsm8k").compute_score
        answer, solution = instance["response"] or "", str(instance["ground_truth"])
        return float(compute_score(answer, solution, method="strict", format_score=0.0, score=1.0))

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        del self._instance_dict[instance_id]
