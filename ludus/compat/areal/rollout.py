"""The interface of rollout workflows: the base classes, the engine that they are given, the arrays that they return.

Knows: sessions, token ids, arrays of any library.  Knows not: rewards of turns, groups, training.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, ClassVar

from ludus.agents.adapter import EpisodeContext
from ludus.compat.areal.generation import GenerationHyperparameters, ModelRequest, ModelResponse
from ludus.compat.members import with_members
from ludus.episodes.claim import TokenRow
from ludus.episodes.session import Session
from ludus.errors import UserError
from ludus.types import ChatRequest, Message

_NEEDED = ("input_ids", "attention_mask", "loss_mask", "rewards")


class AgentWorkflow(ABC):
    """An agent that reaches the model through an SDK. Inheriting is optional: the method is enough."""

    @abstractmethod
    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> Any:
        """Play an episode of the row; returns its reward."""


class RolloutWorkflow(ABC):
    """A workflow that plays one episode. Inheriting is optional: the method is enough."""

    agent_kind: ClassVar[str] = "ludus.compat.areal.adapter:from_rollout_workflow"

    @abstractmethod
    async def arun_episode(self, engine: Any, data: Any) -> Any:
        """Rows of tokens as arrays of shape (rows, tokens): `input_ids`, `attention_mask`, `loss_mask`, and `rewards`
        of shape (rows,); or interactions by completion id; or None to reject the episode."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The part of an engine's configuration that workflows read."""

    request_timeout: float | None
    """Seconds until the deadline of the episode. None: it has none."""


@with_members("areal", "api.engine_api.InferenceEngine")
class EpisodeEngine:
    """Access to the model for one episode."""

    def __init__(self, context: EpisodeContext) -> None:
        if context.session is None:
            raise UserError("an engine asks by tokens, inside this program; set rollout.agent.mode=inline")
        self.context = context
        self.session: Session = context.session

    def __repr__(self) -> str:
        return f"EpisodeEngine({self.session!r})"

    @property
    def config(self) -> EngineConfig:
        deadline_at = self.context.deadline_at
        return EngineConfig(None if deadline_at is None else max(0.0, deadline_at - time.monotonic()))

    def get_version(self) -> int:
        """Version of the current weights."""
        return self.session.version

    async def agenerate(self, req: ModelRequest) -> ModelResponse:
        """Sample an answer with the current weights, which may change during it; each token has its own version.

        Raises UserError for unsupported parameters, AgentError if a limit or the context is exhausted.
        """
        for name, pictures in (("image_data", req.image_data), ("vision_msg_vllm", req.vision_msg_vllm)):
            if pictures:
                raise UserError(f"{name} cannot act: the model reads text alone; leave it out")
        prompt = tuple(map(int, req.input_ids))
        response = await self._ask(ChatRequest(messages=(), prompt=prompt), req.gconfig, len(prompt))
        return replace(response, tokenizer=req.tokenizer)

    async def achat(
        self, messages: Sequence[Mapping[str, str] | Message], gconfig: Any = None, **template_kwargs: Any
    ) -> ModelResponse:
        """The answer to a conversation, rendered with the model's template. If it continues an earlier answer, the
        prompt contains exactly that answer's tokens. messages: role and content. Raises as `agenerate`.
        """
        read = tuple(
            item if isinstance(item, Message) else Message(item["role"], item["content"])  # type: ignore[arg-type]
            for item in messages
        )
        request = ChatRequest(read, template_kwargs=template_kwargs)
        return await self._ask(request, gconfig, self.session.count_prompt_tokens(request))

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Decode token ids with the run's tokenizer."""
        return self.session.text.tokenizer.decode(token_ids, skip_special=skip_special)

    async def _ask(self, request: ChatRequest, gconfig: Any, num_prompt_tokens: int) -> ModelResponse:
        own = GenerationHyperparameters.of(gconfig)
        sampling = own.sampling(self.session.sampling, num_prompt_tokens=num_prompt_tokens)
        started_at = time.perf_counter()
        (turn,) = await self.session.complete(replace(request, sampling=sampling), is_live=False)
        sampled = turn.sampled
        path = self.session.snapshot().path_ids(turn.node)
        return ModelResponse(
            input_tokens=list(path[: len(path) - len(sampled.token_ids)]),
            output_tokens=list(sampled.token_ids),
            output_logprobs=list(sampled.logprobs),
            output_versions=list(sampled.versions),
            stop_reason=sampled.stop_reason,
            latency=time.perf_counter() - started_at,
            completion_id=turn.id,
            stop_ids=turn.sampling.stop_ids(self.session.text.tokenizer.stop_ids),
        )


def token_rows(arrays: Mapping[str, Any]) -> list[TokenRow]:
    """The rows in arrays of shape (rows, tokens): torch, numpy or nested lists; padding is left out.

    Raises UserError if an array is missing, or their shapes do not agree.
    """
    missing = [name for name in _NEEDED if name not in arrays]
    if missing:
        raise UserError(
            f"the rows have no {missing[0]!r}; they need {', '.join(_NEEDED)}, and have {', '.join(map(str, arrays))}"
        )
    ids, attended, marked = (_nested(arrays[name], name) for name in _NEEDED[:3])
    rewards = [_one(reward) for reward in _listed(arrays["rewards"])]
    if not len(ids) == len(attended) == len(marked) == len(rewards):
        counts = ", ".join(f"{name} {len(_listed(arrays[name]))}" for name in _NEEDED)
        raise UserError(f"the arrays hold different numbers of rows: {counts}")
    rows = []
    columns = zip(ids, attended, marked, rewards, strict=True)
    for row_idx, (row_ids, row_attended, row_marked, reward) in enumerate(columns):
        if not len(row_ids) == len(row_attended) == len(row_marked):
            raise UserError(
                f"row {row_idx} has {len(row_ids)} input_ids, an attention_mask of {len(row_attended)} and a loss_mask "
                f"of {len(row_marked)}; they must match"
            )
        kept_ids, kept_marks = (list(compress(values, row_attended)) for values in (row_ids, row_marked))
        rows.append(TokenRow([*map(int, kept_ids)], [*map(bool, kept_marks)], reward))
    return rows


def _listed(array: Any) -> list[Any]:
    return list(array.tolist()) if hasattr(array, "tolist") else list(array)


def _nested(array: Any, name: str) -> list[list[Any]]:
    rows = _listed(array)
    if not all(hasattr(row, "__len__") for row in rows):
        raise UserError(f"{name} must have the shape (rows, tokens); got one row: add a dimension, `unsqueeze(0)`")
    return [list(row) for row in rows]


def _one(reward: Any) -> Any:
    """The number in a reward of shape (1,)."""
    return reward[0] if isinstance(reward, Sequence) and len(reward) == 1 else reward
