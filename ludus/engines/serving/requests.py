"""What a request for tokens holds, in the format of vLLM's token-in/token-out interface, as far as our engine has them.

Knows: field names and types.  Knows not: engines, HTTP.
Invariant: a field that would change the answer and is not known here is refused, never dropped.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated

import pydantic

from ludus.http.body import Body
from ludus.http.numbers import Count
from ludus.types import Call, Sampling

TokenId = Annotated[int, pydantic.Field(ge=0, lt=2**31)]


class StructuredOutputs(Body):
    """What the answer is held to."""

    grammar: str | None = None


class SamplingParams(Body):
    """How one answer is drawn; the defaults sample the model's own distribution."""

    temperature: float = pydantic.Field(default=1.0, ge=0)
    top_p: float = pydantic.Field(default=1.0, gt=0, le=1)
    top_k: Count = 0
    min_p: float = pydantic.Field(default=0.0, ge=0, le=1)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = pydantic.Field(default=1.0, gt=0)
    seed: Annotated[int, pydantic.Field(ge=-(2**63), lt=2**63)] | None = None
    max_tokens: Annotated[Count, pydantic.Field(ge=1)] | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[TokenId, ...] = ()
    ignore_eos: bool = False
    logprobs: Count = 0
    logit_bias: dict[TokenId, float] = pydantic.Field(default_factory=dict)
    structured_outputs: StructuredOutputs = StructuredOutputs()
    detokenize: bool = True
    """Taken because vLLM needs it for stop strings; no text is sent here either way."""

    def sampling(self) -> Sampling:
        same = SamplingParams.model_fields.keys() & {each.name for each in fields(Sampling)} - {"logit_bias"}
        return Sampling(
            **{name: getattr(self, name) for name in same},
            max_new_tokens=self.max_tokens,
            top_logprobs=self.logprobs,
            logit_bias=tuple(sorted(self.logit_bias.items())),
            grammar=self.structured_outputs.grammar,
        )


class StreamOptions(Body):
    """What a stream holds besides the tokens; usage is always sent."""

    include_usage: bool = True


class GenerateBody(Body):
    """Body of a request for tokens."""

    token_ids: tuple[TokenId, ...] = pydantic.Field(min_length=1)
    request_id: str | None = None
    """None: one is made, and cannot be aborted by name."""
    model: str | None = None
    """None: the one that is served."""
    sampling_params: SamplingParams = SamplingParams()
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    def call(self, otherwise: str) -> Call:
        """The call that this asks for. otherwise: its id if it was given none."""
        return Call(self.request_id or otherwise, "", self.token_ids, self.sampling_params.sampling())


class TextBody(Body):
    """Body of a request to tokenize."""

    prompt: str
    add_special_tokens: bool = False


class ScoreBody(Body):
    """Body of a request for the logprobs of given tokens."""

    token_ids: tuple[TokenId, ...] = pydantic.Field(min_length=2)


class AbortBody(Body):
    """Body of a request to end running calls."""

    request_ids: tuple[str, ...] = pydantic.Field(min_length=1)


class PathBody(Body):
    """Body of a request to read new weights from a file that this machine has."""

    path: str
