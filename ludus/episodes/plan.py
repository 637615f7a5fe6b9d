"""A request becomes a completion: its prompt, its sampling with a seed, and one engine call for each of its choices.

Knows: prompts, seeds, the room in the model's context.  Knows not: what has been sampled, who waits.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

from ludus.engines.base import Engine
from ludus.episodes.completion import Choice, Completion
from ludus.episodes.ids import CHAT
from ludus.episodes.limits import Limits
from ludus.episodes.output_format import output_format
from ludus.episodes.prompt import Prompts
from ludus.episodes.seeds import Seeds
from ludus.errors import AgentError
from ludus.text.chat import ChatText
from ludus.types import Call, ChatRequest


class Planner:
    """Plans the completions of one session. Not thread-safe."""

    def __init__(
        self,
        engine: Engine,
        text: ChatText,
        prompts: Prompts,
        seeds: Seeds,
        *,
        session_id: str,
        group_id: str | None,
        limits: Limits,
    ) -> None:
        self._engine = engine
        self._text = text
        self._prompts = prompts
        self._seeds = seeds
        self._session_id = session_id
        self._group_id = group_id
        self._limits = limits

    def plan(self, request: ChatRequest, *, num_tokens: int) -> Completion:
        """The completion that answers `request` after the session has sampled `num_tokens`; call it on its event loop.

        Raises AgentError `context_length_exceeded` where no token of an answer would fit, and `invalid_schema` where
        the answer cannot be held to a schema.
        """
        if request.n < 1:
            raise AgentError(f"n={request.n} must be 1 or more", param="n")
        prompt = self._prompts.choose(request)
        room = self._engine.context_length - len(prompt.ids)
        if room < 1:
            raise AgentError(
                f"the messages make {len(prompt.ids)} tokens, and the model's context of {self._engine.context_length} "
                "must hold them and the answer; shorten the history",
                code="context_length_exceeded",
                param="messages",
            )
        drawn = self._seeds.draw(prompt.ids)
        seed = drawn if request.sampling.seed is None else request.sampling.seed
        budgets = (request.sampling.max_new_tokens, self._limits.tokens_left(num_tokens))
        caps = [cap for cap in budgets if cap is not None]
        form = output_format(request, self._text, prompt.text)
        choices = []
        for idx in range(request.n):
            sampling = replace(request.sampling, seed=seed + idx, max_new_tokens=min(room, *caps) if caps else None)
            call = Call(
                id=CHAT + secrets.token_hex(12),
                session_id=self._session_id,
                prompt_ids=prompt.ids,
                sampling=form.shape(sampling),
                group_id=self._group_id,
                deadline_at=self._limits.deadline_at,
            )
            # What ends the answer behind its first call is part of that call: only the request's own stops are silent.
            reply = form.reply(self._text.tokenizer, sampling, request.tools, f"{drawn}/{idx}")
            choices.append(Choice(idx, call, reply))
        return Completion(request, prompt, choices, started_at=time.time())
