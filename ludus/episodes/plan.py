"""Plans the completion of a request: its prompt, its sampling with a seed, and an engine call for each choice.

Knows: prompts, seeds, the room in the model's context.  Knows not: what has been sampled, who waits.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from ludus.episodes.completion import Choice, Completion
from ludus.episodes.ids import CHAT
from ludus.episodes.output_format import output_format
from ludus.episodes.prompt import Prompts
from ludus.episodes.seeds import Seeds
from ludus.episodes.spec import SessionSpec
from ludus.errors import AgentError
from ludus.types import Call, ChatRequest


def plan(
    request: ChatRequest, spec: SessionSpec, prompts: Prompts, seeds: Seeds, *, num_tokens: int, started_at: float
) -> Completion:
    """The completion for `request` in the session of `spec`, which has sampled `num_tokens` so far. Call this on the
    event loop of the completion.

    Raises AgentError `context_length_exceeded` if no token of an answer would fit, and `invalid_schema` if a schema
    cannot be enforced.
    """
    if request.n < 1:
        raise AgentError(f"n={request.n} must be 1 or more", param="n")
    prompt = prompts.choose(request)
    room = prompts.context_length - len(prompt.ids)
    if room < 1:
        raise AgentError(
            f"the messages make {len(prompt.ids)} tokens, and the model's context of {prompts.context_length} "
            "must hold them and the answer; shorten the history",
            code="context_length_exceeded",
            param="messages",
        )
    drawn = seeds.draw(prompt.ids, request.retry_key)
    seed = drawn if request.sampling.seed is None else request.sampling.seed
    budgets = (request.sampling.max_new_tokens, spec.limits.tokens_left(num_tokens))
    caps = [cap for cap in budgets if cap is not None]
    form = output_format(request, prompts.text, prompt.text)
    choices = []
    for idx in range(request.n):
        sampling = replace(request.sampling, seed=seed + idx, max_new_tokens=min(room, *caps) if caps else None)
        call = Call(
            id=CHAT + secrets.token_hex(12),
            session_id=str(spec.id),
            prompt_ids=prompt.ids,
            sampling=form.shape(sampling),
            group_id=spec.group_id,
            deadline_at=spec.limits.deadline_at,
        )
        # A stop that ends the answer after its first call is part of that call: only the request's own are cut off.
        reply = form.reply(prompts.text.tokenizer, sampling, request.tools, f"{drawn}/{idx}")
        choices.append(Choice(idx, call, reply))
    return Completion(request, prompt, choices, started_at=started_at)
