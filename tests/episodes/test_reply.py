from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ludus.episodes.reply import ReplyStream, StopCutter, replay
from ludus.text.chat import ChatText
from ludus.text.parse import parser_for
from ludus.text.parsers.base import ContentDelta, collect
from ludus.types import Message, Sampling, ToolCall

PIECES = st.lists(st.text(alphabet="abc", max_size=4), max_size=8)


def reply_stream(folder: Path, *stop_token_ids: int) -> tuple[ReplyStream, ChatText]:
    text = ChatText.load(folder, chat_template="chatml-tools")
    parser = text.parser.stream(call_seed="seed", in_reasoning=False)
    return ReplyStream(text.tokenizer, Sampling(stop_token_ids=stop_token_ids), parser), text


@given(PIECES, st.lists(st.text(alphabet="abc", min_size=1, max_size=3), max_size=3))
def test_cutter_lets_through_what_stands_before_the_first_stop(pieces: list[str], stops: list[str]) -> None:
    """However the text is cut into pieces, exactly the text before the first complete stop string passes."""
    cutter = StopCutter(stops)
    passed = "".join(cutter.feed(piece) for piece in pieces) + cutter.finish()
    whole = "".join(pieces)
    # the stop that is complete first ends the text, as it ended the sampling
    ends = [(whole.find(stop) + len(stop), whole.find(stop)) for stop in stops if stop in whole]
    if not ends:
        assert passed == whole
    else:
        assert passed in {whole[:start] for _, start in ends}


@given(st.text(alphabet="abc", max_size=12), st.text(alphabet="abc", min_size=1, max_size=3))
def test_cutter_never_shows_the_beginning_of_a_stop(text: str, stop: str) -> None:
    """Character by character, nothing passes that could still be the beginning of the stop string."""
    cutter = StopCutter((stop,))
    passed = ""
    for idx, char in enumerate(text):
        passed += cutter.feed(char)
        seen = text[: idx + 1]
        if stop in seen:
            assert passed == seen[: seen.find(stop)]
        else:
            assert seen.startswith(passed) and stop.startswith(seen[len(passed) :])


def test_half_a_character_waits(tokenizer_folder: Path) -> None:
    """A character whose bytes come in several tokens leaves whole."""
    reply, text = reply_stream(tokenizer_folder)
    token_ids = text.tokenizer.encode("a€b")
    assert len(token_ids) > 3
    shown = [delta.text for token in token_ids for delta in reply.feed((token,)) if isinstance(delta, ContentDelta)]
    shown += [delta.text for delta in reply.finish() if isinstance(delta, ContentDelta)]
    assert shown == ["a", "€", "b"]


def test_stop_tokens_are_silent(tokenizer_folder: Path) -> None:
    """Neither the model's stop token nor one of the request's own shows in the reply."""
    own = 100
    reply, text = reply_stream(tokenizer_folder, own)
    reply.feed((*text.tokenizer.encode("7"), own, *text.tokenizer.stop_ids))
    reply.finish()
    assert reply.message() == Message("assistant", "7")


def test_replay_adds_up_to_the_message() -> None:
    """The deltas of a finished message make that message again."""
    message = Message("assistant", "I add.", "Hm.", (ToolCall("call_1", "add", "{}"), ToolCall("call_2", "add", "{}")))
    parsed = collect(replay(message))
    assert Message("assistant", parsed.content, parsed.reasoning, parsed.tool_calls) == message


def test_markers_are_shown(tokenizer_folder: Path) -> None:
    """A special token that the parser reads calls by is seen by it, and other special tokens are not."""
    tokenizer = ChatText.load(tokenizer_folder).tokenizer
    marker, other = "<|im_start|>", "<|endoftext|>"
    assert {marker, other} <= set(tokenizer.special_ids)
    stream = parser_for(None, "plain").stream()
    reply = ReplyStream(tokenizer, Sampling(), stream, markers=(marker, "no token"))
    reply.feed(tokenizer.encode(f"a{marker}b{other}c<|im_end|>"))
    reply.finish()
    assert reply.message().content == f"a{marker}bc"
