"""The rules that end one call."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.engines.sequence import SampledToken, Sequence, StopStrings
from ludus.text.constraint import Constraints
from ludus.text.stream import Detokenizer
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, Sampling


def test_a_stop_string_is_found_across_tokens(tokenizer_folder: Path) -> None:
    """A stop string that begins in one token and ends in another is found with its last token."""
    tokenizer = Tokenizer.load(tokenizer_folder)
    for stop in ("th one", "y with one num", ".", "one number"):
        stops = StopStrings(("never this", stop), Detokenizer(tokenizer))
        text = ""
        for token in tokenizer.encode("Reply with one number. Reply."):
            text += tokenizer.decode([token])
            found = stops.feed(token)
            assert found == (stop if stop in text else None)
            if found:
                break


def test_a_sequence_ends_by_the_first_rule_that_holds() -> None:
    """Stop ids come before length; the token that ends an answer is its last."""
    call = Call("call", "s", (5, 6), Sampling())
    sequence = Sequence(call, 9, 0, 4, frozenset({7}), None, [5, 6])
    assert sequence.append(SampledToken(8, -1.0), 3) is None
    assert sequence.append(SampledToken(7, -0.5), 4) == ("stop", None)
    answer = sequence.sampled("stop")
    assert (answer.token_ids, answer.logprobs, answer.versions, answer.seed) == ((8, 7), (-1.0, -0.5), (3, 4), 9)
    long = Sequence(call, 9, 0, 3, frozenset({7}), None, [5, 6])
    assert long.append(SampledToken(8, -1.0), 3) == ("length", None)


def test_a_grammar_that_fails_ends_the_answer_with_its_tokens(
    tokenizer_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of the grammar could follow; the tokens so far are kept, and the log says why it ended."""
    tokenizer = Tokenizer.load(tokenizer_folder)
    sampling = Sampling(grammar='start: "ab"')
    constraint = Constraints(tokenizer).start('start: "ab"')
    sequence = Sequence(Call("call", "s", (5,), sampling), 0, 0, 9, tokenizer.stop_ids, None, [5], constraint)
    (wrong,) = tokenizer.encode("x")
    assert sequence.append(SampledToken(wrong, -1.0, (), (wrong,)), 0) == ("abort", None)
    assert sequence.sampled("abort").token_ids == (wrong,) and sequence.sampled("abort").kept_ids == ((wrong,),)
    assert "grammar_failed call=call" in caplog.text


def test_the_end_of_a_grammar_ends_the_answer(tokenizer_folder: Path) -> None:
    """A complete text ends by itself; a stop string that the same token completes is named."""
    tokenizer = Tokenizer.load(tokenizer_folder)
    for stops, end in (((), ("stop", None)), (("b",), ("stop", "b"))):
        sampling = Sampling(grammar='start: "ab"', stop=stops)
        strings = StopStrings(stops, Detokenizer(tokenizer)) if stops else None
        constraint = Constraints(tokenizer).start('start: "ab"')
        sequence = Sequence(Call("call", "s", (5,), sampling), 0, 0, 9, tokenizer.stop_ids, strings, [5], constraint)
        first, last = (tokenizer.encode(letter)[0] for letter in "ab")
        assert sequence.append(SampledToken(first, -1.0), 0) is None
        assert sequence.append(SampledToken(last, -1.0), 0) == end
