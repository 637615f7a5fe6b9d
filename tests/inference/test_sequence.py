"""The rules that end one call."""

from __future__ import annotations

from pathlib import Path

from ludus.inference.sequence import Draw, Sequence, StopStrings
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
    assert sequence.append(Draw(8, -1.0), 3) is None
    assert sequence.append(Draw(7, -0.5), 4) == ("stop", None)
    answer = sequence.sampled("stop")
    assert (answer.token_ids, answer.logprobs, answer.versions, answer.seed) == ((8, 7), (-1.0, -0.5), (3, 4), 9)
    long = Sequence(call, 9, 0, 3, frozenset({7}), None, [5, 6])
    assert long.append(Draw(8, -1.0), 3) == ("length", None)
