"""The `server_manager` of agent loops: generates token ids through the session that records them.

Knows: a recorded session, sampling parameters by name.  Knows not: engines, rewards.
Invariant: every returned token is in the record.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ludus.compat.members import with_members
from ludus.compat.verl.continuous import refuse_media
from ludus.compat.verl.messages import read_messages
from ludus.episodes.session import Session
from ludus.errors import UserError
from ludus.gateway.dialects.sampling import SAMPLING_FIELDS, read_sampling
from ludus.settings import did_you_mean
from ludus.types import ChatRequest, Message, Sampling, StopReason, ToolSpec, Turn

logger = logging.getLogger(__name__)

_LIMITS = ("max_tokens", "max_new_tokens")
_WITHOUT_EFFECT = frozenset({"logprobs", "detokenize", "skip_special_tokens", "spaces_between_special_tokens"})
"""Parameters that do not affect tokens; logprobs are always recorded."""
_KNOWN = SAMPLING_FIELDS | _WITHOUT_EFFECT | {*_LIMITS, "stop", "top_logprobs", "ignore_eos"}

_IGNORED = frozenset({"priority"})
"""Arguments of `generate` that do not affect tokens, only the order of requests."""


class TokenOutput(list[int]):
    """The sampled ids, as a list, which is what older loops are given; newer ones read its attributes."""

    def __init__(
        self,
        token_ids: Iterable[int] = (),
        log_probs: Sequence[float] = (),
        stop_reason: StopReason = "length",
        turn: Turn | None = None,
        *,
        routed_experts: Any = None,
        num_preempted: int | None = None,
        extra_fields: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(token_ids)
        self.log_probs = list(log_probs)
        self.stop_reason = stop_reason
        """'length': a limit cut it."""
        self.turn = turn
        """The recorded turn. None: no token could be sampled."""
        self.routed_experts, self.num_preempted = routed_experts, num_preempted
        self.extra_fields: dict[str, Any] = {**({} if turn is None else _versions(turn)), **(extra_fields or {})}
        """Which weights sampled it, and how many tokens of the prompt were known."""

    @property
    def token_ids(self) -> TokenOutput:
        """The ids; this object, so that an output which is given them knows its turn."""
        return self


@with_members("verl", "workers.rollout.llm_server.LLMServerClient")
class AsyncLLMServerManager:
    """Generates for one trajectory. Which replica answers is the engine's router's to say: a session stays on one."""

    def __init__(
        self,
        session: Session,
        *,
        response_length: int | None = None,
        named: set[str] | None = None,
        model_path: str = "default",
    ) -> None:
        """response_length: tokens that may follow the first prompt of a `request_id`, the model's and others'. None: no
        limit.  named: arguments that the log has named as ignored, of all trajectories of a run.  model_path: where the
        model was loaded from.
        """
        self.session = session
        self.model_names = (model_path, "/".join(model_path.split("/")[-2:]))
        """What loops call the model that is trained, as verl's own LangGraph loop does."""
        self._named = set() if named is None else named
        self._response_length = response_length
        self._first_prompts: dict[str, int] = {}
        """Length of the first prompt of each request id."""

    def __repr__(self) -> str:
        return f"AsyncLLMServerManager({self.session!r})"

    async def generate(
        self,
        request_id: str,
        *,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        image_data: Sequence[Any] | None = None,
        video_data: Sequence[Any] | None = None,
        audio_data: Sequence[Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        mm_processor_output: Sequence[Any] | None = None,
        **ignored: Any,
    ) -> TokenOutput:
        """Sample an answer after these ids; empty, with stop reason `length`, if there is no room for one.

        A prompt that begins with the tokens of an earlier turn, including its answer, continues that turn.
        Raises AgentError if a limit of the episode is met, UserError for an invalid parameter.
        """
        refuse_media(
            image_data=image_data, video_data=video_data, audio_data=audio_data, mm_processor_output=mm_processor_output
        )
        self._ignore(ignored)
        if mm_processor_kwargs:
            raise UserError(f"mm_processor_kwargs={dict(mm_processor_kwargs)!r:.100} cannot act: there is no processor")
        ids = tuple(map(int, prompt_ids))
        if not ids:
            raise UserError("prompt_ids is empty; a prompt has one token or more")
        room = self._room(request_id, len(ids))
        if room is not None and room < 1:
            return TokenOutput()
        sampling = self.sampling(sampling_params, room)
        (turn,) = await self.session.complete(ChatRequest(messages=(), sampling=sampling, prompt=ids))
        return TokenOutput(turn.sampled.token_ids, turn.sampled.logprobs, turn.sampled.stop_reason, turn)

    async def complete(
        self,
        messages: Iterable[Mapping[str, Any] | Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling_params: Mapping[str, Any] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        room: int | None = None,
    ) -> Turn:
        """The recorded turn that answers these messages; its prompt extends the tokens of the turn before exactly.

        room: limit on its tokens. None: that of the parameters.
        """
        request = ChatRequest(
            messages=read_messages(messages),
            tools=tuple(tools),
            sampling=self.sampling(sampling_params or {}, room),
            template_kwargs=template_kwargs or {},
        )
        (turn,) = await self.session.complete(request)
        return turn

    def sampling(self, params: Mapping[str, Any], room: int | None = None) -> Sampling:
        """The run's sampling with these parameters in place, and no more tokens than there is room for. Raises
        UserError for a name that is unknown."""
        for name in params:
            if name not in _KNOWN:
                hint = did_you_mean(name, _KNOWN)
                raise UserError(f"sampling_params has the unknown {name!r}{hint} Known: {', '.join(sorted(_KNOWN))}")
        given = {name: value for name, value in params.items() if name not in _WITHOUT_EFFECT and value is not None}
        ignore_eos = given.pop("ignore_eos", self.session.sampling.ignore_eos)
        read = read_sampling(given, self.session.sampling, limits=_LIMITS)
        caps = [cap for cap in (read.max_new_tokens, room) if cap is not None]
        return replace(read, ignore_eos=bool(ignore_eos), max_new_tokens=min(caps, default=None))

    def _ignore(self, given: Mapping[str, Any]) -> None:
        """Log each ignored argument once. Raises UserError for one that would change the result, or is unknown."""
        for name, value in given.items():
            if name not in _IGNORED and value is not None:
                raise UserError(
                    f"generate takes no {name!r}, got {value!r:.100}; how tokens are sampled is said in "
                    f"sampling_params, and ignored are: {', '.join(sorted(_IGNORED))}"
                )
            if name not in self._named:
                self._named.add(name)
                logger.info("generate(…, %s=%r) is ignored: it moves no token", name, value)

    def _room(self, request_id: str, num_prompt: int) -> int | None:
        """Tokens left for the response of this request. None: no limit."""
        first = self._first_prompts.setdefault(request_id, num_prompt)
        return None if self._response_length is None else self._response_length - max(0, num_prompt - first)


def _versions(turn: Turn) -> dict[str, Any]:
    versions = turn.sampled.versions
    return {
        "global_steps": versions[-1],
        "min_global_steps": min(versions),
        "max_global_steps": max(versions),
        "num_cached_tokens": turn.sampled.num_cached_tokens,
    }


def sampling_params_of(sampling: Sampling) -> dict[str, Any]:
    """The parameters that a loop is run with, under the names that verl gives them."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "repetition_penalty": sampling.repetition_penalty,
        "logprobs": True,
    }
