from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from ludus.engines.base import Engine
from ludus.engines.scripted import ScriptedEngine
from ludus.errors import BackendError
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, Sampling
from tests.engines.contract import CHECKS, call


@pytest.fixture
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_folder)


def _improvise(asked: Call) -> list[int]:
    """Thirty tokens that depend on the prompt and the seed."""
    digest = hashlib.blake2b(f"{asked.prompt_ids}/{asked.sampling.seed or 0}".encode(), digest_size=30).digest()
    return [3 + byte for byte in digest]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_keeps_the_engine_contract(check: Callable[[Callable[[], Engine]], None], tokenizer: Tokenizer) -> None:
    """The scripted engine keeps every point of the contract."""
    if check.__name__ == "check_drawn_seed_repeats_the_sample":
        check(lambda: ScriptedEngine(lambda asked: "the same answer", tokenizer))
    else:
        check(lambda: ScriptedEngine(_improvise, tokenizer, context_length=64))


def test_replays_text_and_adds_the_stop_token(tokenizer: Tokenizer) -> None:
    """A written answer comes back as its tokens followed by the model's own stop token."""
    engine = ScriptedEngine(["Guess. It is 7."], tokenizer)
    sampled = asyncio.run(engine.generate(call()))
    assert tokenizer.decode(sampled.token_ids) == "Guess. It is 7.<|im_end|>"
    assert sampled.token_ids[-1] in tokenizer.stop_ids
    assert sampled.stop_reason == "stop"


def test_token_ids_are_taken_as_they_are(tokenizer: Tokenizer) -> None:
    """An answer written as token ids is not tokenized again, however unusual its tokens are."""
    token_ids = tuple(tokenizer.encode(letter)[0] for letter in "number")
    assert token_ids != tokenizer.encode("number")
    sampled = asyncio.run(ScriptedEngine([token_ids], tokenizer).generate(call()))
    assert sampled.token_ids[:-1] == token_ids


def test_stop_string_ends_the_answer(tokenizer: Tokenizer) -> None:
    """A stop string ends the answer with the token that completes it, and is named."""
    engine = ScriptedEngine(["higher or lower"], tokenizer)
    sampled = asyncio.run(engine.generate(call(sampling=Sampling(stop=("zebra", " or")))))
    assert tokenizer.decode(sampled.token_ids).startswith("higher or")
    assert "lower" not in tokenizer.decode(sampled.token_ids)
    assert (sampled.stop_reason, sampled.stop_string) == ("stop", " or")


def test_running_out_names_the_call(tokenizer: Tokenizer) -> None:
    """When no answer is left the error says which call it was."""
    engine = ScriptedEngine(["one"], tokenizer)
    asyncio.run(engine.generate(call("1")))
    with pytest.raises(BackendError, match="1 answers and this is call number 2"):
        asyncio.run(engine.generate(call("2")))


def test_calls_are_kept(tokenizer: Tokenizer) -> None:
    """What the engine was asked, seeds included, can be looked at afterwards."""
    engine = ScriptedEngine(["one", "two"], tokenizer)
    for seed in (5, 6):
        asyncio.run(engine.generate(call(f"{seed}", sampling=Sampling(seed=seed))))
    assert [asked.sampling.seed for asked in engine.calls] == [5, 6]
