"""What the local engine says: scripts first, then the seed's words, then what a grammar allows."""

from __future__ import annotations

import json

import pytest

from ludus.checks.conformance.answers import ScriptedAnswers
from ludus.checks.conformance.local_server import own_text
from ludus.errors import BackendError
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, Sampling

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2}},
    "required": ["x", "tags"],
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return own_text().tokenizer


def call(**sampling: object) -> Call:
    return Call("c", "s", (1, 2), Sampling(**sampling))  # type: ignore[arg-type]


def test_scripts_come_first_and_run_out(tokenizer: Tokenizer) -> None:
    """Scripted answers in their order, an error among them, then words; other sessions have none of it."""
    scripted_answers = ScriptedAnswers(tokenizer)
    scripted_answers.script("s", ["red", BackendError("out of memory")])
    scripted_answers.script("other", ["green"])
    assert scripted_answers.answer(call(seed=1)) == "red"
    with pytest.raises(BackendError):
        scripted_answers.answer(call(seed=1))
    assert scripted_answers.answer(call(seed=1)) == ScriptedAnswers(tokenizer).answer(call(seed=1)) != ""


def test_words_are_drawn_by_the_seed(tokenizer: Tokenizer) -> None:
    """A seed always says the same; greedy calls do whatever their seed."""
    scripted_answers = ScriptedAnswers(tokenizer)
    assert len({scripted_answers.answer(call(seed=seed)) for seed in range(8)}) > 4
    assert scripted_answers.answer(call(seed=3)) == scripted_answers.answer(call(seed=3))
    assert scripted_answers.answer(call(seed=3, temperature=0.0)) == scripted_answers.answer(
        call(seed=4, temperature=0.0)
    )


def test_a_grammar_is_kept_and_comes_to_an_end(tokenizer: Tokenizer) -> None:
    """What is said under a schema is JSON that fits it, and short."""
    said = ScriptedAnswers(tokenizer).answer(call(seed=1, grammar=f"start: %json {json.dumps(SCHEMA)}"))
    assert isinstance(said, tuple) and len(said) < 60
    value = json.loads(tokenizer.decode(said, skip_special=True))
    assert isinstance(value["x"], int) and len(value["tags"]) >= 2
