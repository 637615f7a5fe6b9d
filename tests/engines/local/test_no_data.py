"""Whole steps of the engine on a device without data: nothing is made on the wrong device, however it samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ludus.engines.local.core import EngineCore
from ludus.engines.local.kernels.eager import EagerKernel
from ludus.engines.local.settings import InferenceSettings
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, Sampled, Sampling
from tests.models.no_data import model_without_data, without_data

SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "plain": Sampling(),
    "cut": Sampling(temperature=0.7, top_p=0.9, top_k=5, min_p=0.01),
    "penalised": Sampling(repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.1),
    "biased": Sampling(logit_bias=((7, 1.0), (9, -100.0)), top_logprobs=3),
    "grammar": Sampling(grammar='start: "red" | "blue"'),
}


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_every_way_to_sample_stays_on_the_models_device(
    family: str, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in chunks beside answers that go on, shared beginnings, windows and caps, all kinds of sampling in one
    step; then a publish, and what is scored."""
    tokenizer = Tokenizer.load(tokenizer_folder)
    settings = InferenceSettings(kv_bytes=2**22, max_batch_tokens=32, kernels="eager")
    answers: dict[str, Sampled] = {}
    with without_data(monkeypatch):
        core = EngineCore(
            model_without_data(family, vocab_size=tokenizer.vocab_size), tokenizer, settings, EagerKernel()
        )
        for number, (name, sampling) in enumerate(SAMPLINGS.items()):
            prompt = (*range(3, 43), 50 + number)
            core.add(Call(name, "s", prompt, replace(sampling, max_new_tokens=4)), seed=number)
        while not core.is_idle:
            answers |= {each.call_id: each.answer for each in core.step() if each.answer is not None}
            if core.version == 0:
                core.publish(1, lambda: None)
        core.score(tuple(range(3, 20)))
    assert set(answers) == set(SAMPLINGS)
