"""A stand-in for vLLM's server with answers that follow from the prompt, and what connects to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ludus.engines.weights import WeightFiles
from ludus.text.tokenizer import Tokenizer
from tests.engines.contract import TOKEN_DELAY_S
from tests.engines.vllm.vllm_server import StandIn, improvise, serving


@pytest.fixture
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_folder)


@pytest.fixture
def stand_in(tokenizer: Tokenizer) -> StandIn:
    return StandIn(improvise, tokenizer, token_delay_s=TOKEN_DELAY_S)


@pytest.fixture
def url(stand_in: StandIn) -> Iterator[str]:
    with serving(stand_in) as url:
        yield url


@pytest.fixture
def files(tmp_path: Path) -> WeightFiles:
    return WeightFiles(tmp_path / "weights")
