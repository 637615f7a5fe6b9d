"""Requests of queue agents and the model's answers: sampling parameters, and bundles of answers.

Knows: token ids, logprobs, versions.  Knows not: queues, engines.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ludus.compat.hyperparameters import Hyperparameters
from ludus.compat.members import with_members
from ludus.errors import UserError
from ludus.types import Sampling, Turn

_WHOLE_VOCABULARY = 10**8
"""The originals' value of `top_k` for no restriction."""


@with_members("realhf", "api.cli_args.GenerationHyperparameters")
@dataclass(kw_only=True)
class GenerationHyperparameters(Hyperparameters):
    """Sampling parameters. None: the value of the run's `gconfig`."""

    n: int = 1
    """Answers to one observation: the size of a bundle."""

    def sampling(self, base: Sampling) -> Sampling:
        """The engine's sampling parameters; None is taken from `base`. Raises UserError for unsupported values."""
        if self.n < 1:
            raise UserError(f"gconfig.n={self.n} must be 1 or more")
        is_whole = self.top_k is not None and self.top_k >= _WHOLE_VOCABULARY
        return self.over(base, top_k=0 if is_whole else self.top_k)


@dataclass
class BundledGenerationOutputs:
    """The answers to one observation; each list has one entry for each of them."""

    qid: Hashable
    prompt_ids: list[int]
    output_ids: list[list[int]]
    seqs: list[list[int]]
    """Prompt and answer."""
    logprobs: list[list[float]]
    """Logprobs of all tokens but the first, with zeros for the prompt; one shorter than `seqs`."""
    no_eos: list[bool]
    """Whether the answer was cut."""
    version_start: list[int]
    """Version of the weights that sampled its first token."""
    version_end: list[int]
    """Version of the weights that sampled its last token."""

    @classmethod
    def from_turns(cls, qid: Hashable, prompt_ids: Sequence[int], turns: Sequence[Turn]) -> BundledGenerationOutputs:
        """The bundle of recorded answers to one prompt."""
        sampled = [turn.sampled for turn in turns]
        prompt = list(prompt_ids)
        return cls(
            qid=qid,
            prompt_ids=prompt,
            output_ids=[list(item.token_ids) for item in sampled],
            seqs=[prompt + list(item.token_ids) for item in sampled],
            logprobs=[[0.0] * (len(prompt) - 1) + list(item.logprobs) for item in sampled],
            no_eos=[item.stop_reason != "stop" for item in sampled],
            version_start=[item.versions[0] for item in sampled],
            version_end=[item.versions[-1] for item in sampled],
        )

    @classmethod
    def from_api_outputs(cls, outputs: Sequence[APIGenerateOutput]) -> BundledGenerationOutputs:
        """The bundle of several requests for one prompt. Raises ValueError if they differ in it."""
        qids = {output.qid for output in outputs}
        if len(qids) != 1:
            raise ValueError(f"a bundle answers one query; these answer {sorted(map(str, qids))}")
        first = outputs[0]
        seqs = [list(output.input_ids) + list(ids) for output in outputs for ids in output.output_ids]
        return cls(
            qid=first.qid,
            prompt_ids=list(first.prompt_ids),
            output_ids=[seq[len(first.prompt_ids) :] for seq in seqs],
            seqs=seqs,
            logprobs=[row for output in outputs for row in output.get_logprobs()],
            no_eos=[flag for output in outputs for flag in output.no_eos],
            version_start=[output.version_start for output in outputs for _ in output.output_ids],
            version_end=[version for output in outputs for version in output.version_end],
        )

    @property
    def output_logprobs(self) -> list[list[float]]:
        return [row[self.prompt_len - 1 :] for row in self.logprobs]

    @property
    def output_lens(self) -> list[int]:
        return [len(ids) for ids in self.output_ids]

    @property
    def seqlens(self) -> list[int]:
        return [len(ids) for ids in self.seqs]

    @property
    def prompt_len(self) -> int:
        return len(self.prompt_ids)


@dataclass
class APIGenerateOutput:
    """The result of one request for one prompt, of which a part may have been sampled before (`prev_logprobs`)."""

    qid: Hashable
    prompt_ids: list[int]
    input_ids: list[int]
    """The prompt, and what was sampled before."""
    gconfig: GenerationHyperparameters
    prev_logprobs: list[float] = field(default_factory=list)
    version_start: int = -1
    metadata: dict[str, Any] = field(default_factory=dict)
    output_ids: list[list[int]] = field(default_factory=list)
    output_logprobs: list[list[float]] = field(default_factory=list)
    version_end: list[int] = field(default_factory=list)
    no_eos: list[bool] = field(default_factory=list)
    latency: float = math.inf
    ttft: float = math.inf
    itl: list[float] = field(default_factory=list)
    """Latencies between tokens, for callers that measure them; not set here."""

    @classmethod
    def from_input(cls, inp: Any) -> APIGenerateOutput:
        """An empty output, from an object with its first seven fields."""
        given = ("qid", "prompt_ids", "input_ids", "gconfig", "prev_logprobs", "version_start", "metadata")
        return cls(**{name: getattr(inp, name) for name in given})

    @staticmethod
    def concat(outputs: Sequence[APIGenerateOutput]) -> APIGenerateOutput:
        """Join the answers to one query as one request. Raises ValueError if the queries differ."""
        if len({output.qid for output in outputs}) != 1:
            raise ValueError(f"these answer {sorted({str(output.qid) for output in outputs})}, and no one query")
        return replace(
            outputs[0],
            output_ids=[each for output in outputs for each in output.output_ids],
            output_logprobs=[each for output in outputs for each in output.output_logprobs],
            version_end=[each for output in outputs for each in output.version_end],
            no_eos=[each for output in outputs for each in output.no_eos],
            latency=max(output.latency for output in outputs),
            ttft=max(output.ttft for output in outputs),
            itl=[each for output in outputs for each in output.itl],
        )

    @property
    def group_size(self) -> int:
        return len(self.output_ids)

    @property
    def output_lens(self) -> list[int]:
        return [len(ids) for ids in self.output_ids]

    @property
    def input_len(self) -> int:
        return len(self.input_ids)

    @property
    def prompt_len(self) -> int:
        return len(self.prompt_ids)

    @property
    def gen_lens(self) -> list[int]:
        """Length of each answer, including what was sampled before."""
        return [length + self.input_len - self.prompt_len for length in self.output_lens]

    def get_logprobs(self) -> list[list[float]]:
        """Logprobs of whole sequences: zeros for the prompt, then those sampled before, then each answer's."""
        head = [0.0] * (len(self.prompt_ids) - 1) + list(self.prev_logprobs)
        return [head + list(row) for row in self.output_logprobs]
