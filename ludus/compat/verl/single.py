"""One question, one answer: the loop of rows that name none."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from ludus.compat.verl.base import AgentLoopBase, simple_timer
from ludus.compat.verl.output import AgentLoopMetrics, AgentLoopOutput
from ludus.compat.verl.resources import NO_LIMIT


class SingleTurnAgentLoop(AgentLoopBase):
    """Asks the row's prompt once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prompt_length = self._rollout.prompt_length or NO_LIMIT
        self.response_length = self._rollout.response_length or NO_LIMIT

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> AgentLoopOutput:
        """priority: not read: requests are served as they come."""
        prompt_ids = await self.ct_build_initial_tokens(kwargs["raw_prompt"])
        timing: dict[str, float] = {}
        with simple_timer("generate_sequences", timing):
            answer = await self.server_manager.generate(
                uuid4().hex, prompt_ids=prompt_ids, sampling_params=sampling_params
            )
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=answer.token_ids,
            response_mask=[1] * len(answer),
            response_logprobs=answer.log_probs,
            num_turns=2,
            metrics=AgentLoopMetrics.model_validate(timing),
            extra_fields={"truncated": answer.stop_reason == "length"},
        )
