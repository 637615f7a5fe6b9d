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
from tests.engines.contract import ALLOWED, CHECKS, call


@pytest.fixture
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_folder)


def _improvise(asked: Call) -> list[int]:
    """Thirty tokens that depend on the prompt and the seed; under a grammar, what the suite's allows."""
    if asked.sampling.grammar is not None:
        return [allowed[asked.prompt_ids[0] % len(allowed)] for allowed in ALLOWED]
    digest = hashlib.blake2b(f"{asked.prompt_ids}/{asked.sampling.seed or 0}".encode(), digest_size=30).digest()
    banned = {token for token, _ in asked.sampling.logit_bias}
    return [3 + byte for byte in digest if 3 + byte not in banned]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_keeps_the_engine_contract(check: Callable[[Callable[[], Engine]], None], tokenizer: Tokenizer) -> None:
    """The scripted engine keeps every point of the contract."""
    if check.__name__ == "check_drawn_seed_repeats_the_sample":
        check(lambda: ScriptedEngine(lambda asked: "the same answer", tokenizer))
    else:
        check(lambda: ScriptedEngine(_improvise, tokenizer, context_length=64))


def test_replays_text_and_adds_the_stop_token(tokenizer: Tokenizer) -> None:
    """A scripted answer comes back as its tokens followed by the model's own stop token."""
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


def test_a_long_run_keeps_no_calls(tokenizer: Tokenizer) -> None:
    """They are counted; kept, they would be what a soak test finds to grow."""
    engine = ScriptedEngine(["one", "two"], tokenizer, keeps_calls=False)
    asked = [call(each) for each in ("a", "b")]
    for each in asked:
        asyncio.run(engine.generate(each))
    stats = engine.stats()
    assert engine.calls == () and stats.num_calls == 2
    assert stats.num_prefilled_tokens == sum(len(each.prompt_ids) for each in asked)


def test_a_scripted_token_that_the_grammar_forbids_is_an_error(tokenizer: Tokenizer) -> None:
    """The error names the token and what stood before it; an answer of the grammar ends where the grammar does."""
    engine = ScriptedEngine(["seven wizards", "seven"], tokenizer)
    sampling = Sampling(grammar='start: "seven" " potions"?')
    with pytest.raises(BackendError, match=r"after 'seven', which the grammar of call 'call' forbids"):
        asyncio.run(engine.generate(call(sampling=sampling)))
    sampled = asyncio.run(engine.generate(call(sampling=sampling)))
    assert tokenizer.decode(sampled.token_ids) == "seven<|im_end|>" and sampled.stop_reason == "stop"
    closed = asyncio.run(
        ScriptedEngine(["seven"], tokenizer).generate(call(sampling=Sampling(grammar='start: "seven"')))
    )
    assert tokenizer.decode(closed.token_ids) == "seven" and closed.stop_reason == "stop"


def test_a_banned_scripted_token_is_an_error(tokenizer: Tokenizer) -> None:
    """A bias of -100 says never; a script that says the token all the same is wrong."""
    (banned,) = tokenizer.encode("x")
    engine = ScriptedEngine(["x"], tokenizer)
    with pytest.raises(BackendError, match="bias of call 'call' forbids"):
        asyncio.run(engine.generate(call(sampling=Sampling(logit_bias=((banned, -100.0),)))))


def test_of_cut_tokens_it_tells_what_was_kept(tokenizer: Tokenizer) -> None:
    """Per token some ids with the token among them, or None; nothing where nothing is cut."""
    engine = ScriptedEngine(lambda asked: "the quick brown fox", tokenizer)
    cut = asyncio.run(engine.generate(call(sampling=Sampling(top_p=0.9))))
    assert all(kept is None or token in kept for token, kept in zip(cut.token_ids, cut.kept_ids, strict=True))
    assert asyncio.run(engine.generate(call())).kept_ids == ()
