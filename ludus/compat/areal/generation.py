"""Requests of rollout workflows to the model, and its responses: token ids with logprobs and versions.

Knows: token ids, sampling parameters.  Knows not: sessions, rewards.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal

from ludus.compat.hyperparameters import Hyperparameters
from ludus.errors import UserError
from ludus.types import Sampling

logger = logging.getLogger(__name__)

_CANNOT_ACT: dict[str, Any] = {"use_beam_search": False}
"""Parameters that no engine supports, with the value that means "off"."""
_NOT_OPENAIS = {
    "min_new_tokens",
    "greedy",
    "top_k",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "lora_name",
    "use_beam_search",
    "max_tokens",
}
"""Parameters that requests to OpenAI's API lack; among them max_tokens, which here includes the prompt."""


_NOT_SENT = _NOT_OPENAIS - {"greedy", "skip_special_tokens", "lora_name"}
"""Those that would change an answer."""
_ANSWER_TOKENS = {
    "completions": "max_completion_tokens",
    "responses": "max_output_tokens",
    "openai-agents": "max_tokens",
}
"""Name of the limit on an answer's tokens, by protocol."""


@cache
def _tell_not_sent(name: str, value: str) -> None:
    logger.warning(
        "%s=%s is not sent with requests to OpenAI's API, which lacks it: the run's gconfig applies", name, value
    )


@dataclass(kw_only=True)
class GenerationHyperparameters(Hyperparameters):
    """Sampling parameters. None: the value of the run's `gconfig`."""

    n_samples: int = 1
    max_tokens: int | None = None
    """Limit on prompt and answer together."""
    stop: list[str] | None = None
    frequency_penalty: float | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    """Accepted without effect, because answers are token ids."""
    use_beam_search: bool = False
    lora_name: str = ""
    """Accepted without effect, because there is only one adapter, the run's."""

    def new_with_stop_and_pad_token_ids(self, tokenizer: Any) -> GenerationHyperparameters:
        """A copy that also ends at the tokenizer's end-of-text and padding tokens."""
        ids = [*self.stop_token_ids, *(i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None)]
        return replace(self, stop_token_ids=list(dict.fromkeys(ids)))

    def to_openai_completions_args_dict(self, exclude_args: Sequence[str] | None = None) -> dict[str, Any]:
        """Arguments of `client.chat.completions.create`."""
        return self.to_openai_args_dict(exclude_args, "completions")

    def to_openai_responses_args_dict(self, exclude_args: Sequence[str] | None = None) -> dict[str, Any]:
        """Arguments of `client.responses.create`."""
        return self.to_openai_args_dict(exclude_args, "responses")

    def to_openai_agents_model_settings_dict(self, exclude_args: Sequence[str] | None = None) -> dict[str, Any]:
        """Arguments of `agents.ModelSettings`."""
        return self.to_openai_args_dict(exclude_args, "openai-agents")

    def to_openai_args_dict(
        self, exclude_args: Sequence[str] | None = None, api_format: str = "completions"
    ) -> dict[str, Any]:
        """Arguments of a request to OpenAI's API. Parameters that are None, or that it lacks, are left out, so that the
        run's `gconfig` applies; the log names those that were given. `greedy` is temperature 0.

        api_format: completions, responses, or openai-agents.  Raises UserError for another.
        """
        if api_format not in _ANSWER_TOKENS:
            raise UserError(f"api_format={api_format!r} is not known; there are {', '.join(_ANSWER_TOKENS)}")
        names = {"n_samples": "n", "max_new_tokens": _ANSWER_TOKENS[api_format]}
        left_out = {*_NOT_OPENAIS, *(exclude_args or ()), *(() if api_format == "completions" else ("n_samples",))}
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in left_out}
        for each in fields(self):
            given = getattr(self, each.name)
            if (
                each.name in _NOT_SENT
                and each.name not in (exclude_args or ())
                and given not in (each.default, None, [])
            ):
                _tell_not_sent(each.name, repr(given))
        if self.greedy and "temperature" not in left_out:
            values["temperature"] = 0.0
        return {names.get(name, name): value for name, value in values.items() if value is not None}

    def sampling(self, base: Sampling, *, num_prompt_tokens: int) -> Sampling:
        """The engine's sampling parameters; None is taken from `base`. Raises UserError for unsupported values."""
        if self.n_samples != 1:
            raise UserError(f"gconfig.n_samples={self.n_samples}: one call gives one answer; await several calls")
        for name, nothing in _CANNOT_ACT.items():
            if getattr(self, name) != nothing:
                raise UserError(f"gconfig.{name}={getattr(self, name)!r} cannot act; leave it at {nothing!r}")
        caps = [cap for cap in (self.max_new_tokens, self._room(num_prompt_tokens)) if cap is not None]
        return self.over(
            base,
            max_new_tokens=min(caps) if caps else None,
            stop=tuple(self.stop or ()) or None,
            frequency_penalty=self.frequency_penalty,
            ignore_eos=self.ignore_eos or None,
        )

    def _room(self, num_prompt_tokens: int) -> int | None:
        """Tokens that max_tokens leaves for the answer. None: there is no max_tokens."""
        if self.max_tokens is None:
            return None
        room = self.max_tokens - num_prompt_tokens
        if room < 1:
            raise UserError(
                f"gconfig.max_tokens={self.max_tokens} leaves no room for an answer behind {num_prompt_tokens} "
                "prompt tokens; shorten the prompt, or raise it"
            )
        return room


@dataclass
class ModelRequest:
    """A request to the model."""

    rid: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The caller's id of it. Not used for routing, as sessions stay at one engine anyway."""
    input_ids: Sequence[int] = field(default_factory=list)
    gconfig: Any = None
    """`GenerationHyperparameters`, or anything that its `of` accepts. None: the run's."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Accepted without effect."""
    tokenizer: Any = None
    """Accepted without effect, because the engine has its own."""
    image_data: Sequence[Any] | None = None
    processor: Any = None
    """Accepted without effect, because images are not supported."""
    vision_msg_vllm: Sequence[Any] | None = None

    def copy(self) -> ModelRequest:
        return replace(self, input_ids=list(self.input_ids), metadata=dict(self.metadata))


@dataclass
class ModelResponse:
    """An answer of the model."""

    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    """Logprobs under the distribution that was sampled from."""
    output_versions: list[int] = field(default_factory=list)
    """Versions of the weights that sampled each token."""
    stop_reason: Literal["stop", "length", "abort"] = "stop"
    tokenizer: Any = None
    """The tokenizer of the request."""
    input_images: Sequence[Any] = ()
    processor: Any = None
    latency: float = 0.0
    """Seconds."""
    ttft: float = math.inf
    """Seconds until the first token; not measured here."""
    itl: list[float] = field(default_factory=list)
    """Seconds between tokens; not measured here."""
    routed_experts: Any = None
    """Always None: the trainer routes tokens to experts itself."""
    completion_id: str = ""
    """Id of the answer, as in the keys of a mapping of rewards."""
    stop_ids: frozenset[int] = frozenset()
    """Ids that end an answer of this model, or of this request."""

    @property
    def input_len(self) -> int:
        return len(self.input_tokens)

    @property
    def output_len(self) -> int:
        return len(self.output_tokens)

    @property
    def end_with_stop(self) -> bool:
        """Whether the last token is a stop token."""
        return bool(self.output_tokens) and self.output_tokens[-1] in self.stop_ids

    @property
    def output_tokens_without_stop(self) -> list[int]:
        """The tokens without the stop token, if there is one: answers ended by a stop string or a limit have none."""
        ended = self.stop_reason == "stop" and self.end_with_stop
        return self.output_tokens[:-1] if ended else list(self.output_tokens)
