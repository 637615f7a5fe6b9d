"""Answers of several requests for one prompt."""

from __future__ import annotations

import pytest

from ludus.compat.realhf.generation import APIGenerateOutput, BundledGenerationOutputs, GenerationHyperparameters
from ludus.errors import ConfigError


def output(qid: str, answer: list[int]) -> APIGenerateOutput:
    made = APIGenerateOutput(qid, [1, 2], [1, 2, 3], GenerationHyperparameters(), [-0.5], 1)
    filled = APIGenerateOutput.from_input(made)
    filled.output_ids, filled.output_logprobs = [answer], [[-1.0] * len(answer)]
    filled.version_end, filled.no_eos, filled.latency = [2], [False], float(len(answer))
    return filled


def test_answers_of_several_requests_are_those_of_one() -> None:
    """In their order; lengths count what was sampled before; the bundle is the same."""
    outputs = [output("q", [4, 5]), output("q", [6])]
    both = APIGenerateOutput.concat(outputs)
    assert both.output_ids == [[4, 5], [6]] and both.version_end == [2, 2] and both.latency == 2.0
    assert (both.group_size, both.output_lens, both.gen_lens) == (2, [2, 1], [3, 2])
    assert (both.input_len, both.prompt_len) == (3, 2) and outputs[0].group_size == 1
    bundles = [BundledGenerationOutputs.from_api_outputs(each) for each in (outputs, [both])]
    assert bundles[0] == bundles[1]
    with pytest.raises(ValueError, match="no one query"):
        APIGenerateOutput.concat([output("a", [1]), output("b", [1])])


def test_what_no_engine_has_is_refused_by_name() -> None:
    """What of the original's concerns its engine alone."""
    with pytest.raises(ConfigError, match="use_cuda_graph=True: engines have no such graphs"):
        GenerationHyperparameters(n=2, use_cuda_graph=True)  # type: ignore[call-arg]
