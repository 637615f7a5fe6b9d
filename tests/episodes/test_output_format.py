"""An answer is held to what the request forces, and ends where the request says."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest
import tokenizers

from ludus.episodes.reply import ReplyStream
from ludus.errors import AgentError
from ludus.text.constraint import Constraints
from ludus.text.grammar import grammar_of
from ludus.text.parse import PARSERS, parser_for
from ludus.text.tokenizer import Tokenizer
from ludus.types import ChatRequest, Message, ResponseFormat, Sampling, ToolSpec
from tests.episodes.conftest import ADD, SetTable, user

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def test_forced_call_samples_under_a_grammar(set_table: SetTable) -> None:
    """A required call gives the engine a grammar, which is in the record with the rest of what was sampled with."""
    table = set_table([CALL], "chatml-tools")
    turn = asyncio.run(table.ask(user("Add."), tools=(ADD,), tool_choice="required", forced_tool="add"))
    assert turn.sampling.grammar is not None and '"add' not in (turn.reply.content or "")
    assert [call.name for call in turn.reply.tool_calls] == ["add"]
    assert turn.finish_reason == "tool_calls"


def test_answer_ends_behind_its_only_call(set_table: SetTable) -> None:
    """Without parallel calls an answer ends with the tag of its first; the next turn extends it token by token."""
    table = set_table([f"Hm.\n{CALL}\n{CALL}", "3"], "chatml-tools")

    async def play() -> None:
        first = await table.ask(user("Add."), tools=(ADD,), parallel_tool_calls=False)
        assert [call.arguments for call in first.reply.tool_calls] == ['{"a": 1}']
        assert (first.reply.content, first.undecoded, first.sampled.stop_string) == ("Hm.", (), "</tool_call>")
        assert first.sampling.grammar is None and first.finish_reason == "tool_calls"
        result = Message("tool", "2", tool_call_id=first.reply.tool_calls[0].id)
        second = await table.ask(user("Add."), first.reply, result, tools=(ADD,))
        assert (second.fork, second.prefix) == (None, first.id)
        assert table.seen(second).count("</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>") == 1

    asyncio.run(play())


@pytest.mark.parametrize("name", [name for name in PARSERS if name != "plain"])
def test_tags_that_are_special_tokens(name: str, tokenizer_folder: Path) -> None:
    """Where a format's tags are special tokens, a call is forced with them and read from them, in any chunks."""
    parser = parser_for(None, name)
    core = tokenizers.Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    core.add_special_tokens(list(parser.markers))
    tokenizer = Tokenizer(core, special_tokens={}, stop_ids=frozenset({2}))
    request = ChatRequest((), tools=(ADD,), tool_choice="required", forced_tool="add")
    lark = grammar_of(request, parser, tokenizer.special_ids, in_reasoning=False)
    assert lark is not None
    constraint = Constraints(tokenizer).start(lark)
    reply = ReplyStream(tokenizer, Sampling(), parser.stream(tools=(ADD,)), markers=parser.markers)
    chance = random.Random(0)
    for _ in range(400):
        allowed = [idx for idx in range(tokenizer.vocab_size) if constraint.allows(idx)]
        if 2 in allowed:
            break
        # A number has no end, and a name may be any: what may close something is taken first.
        closing = [idx for idx in allowed if tokenizer.decode((idx,)) in ("}", '"', ")", *parser.markers)]
        token = chance.choice(closing or allowed)
        constraint.advance(token)
        reply.feed((token,))
    reply.feed((2,))
    reply.finish()
    (call,) = reply.message().tool_calls
    assert (call.name, reply.message().content, reply.undecoded) == ("add", None, ())
    assert isinstance(json.loads(call.arguments), dict)


def test_json_answer(set_table: SetTable) -> None:
    """A response format holds the answer to JSON, with and without a schema."""
    table = set_table(['{"n": 1}', '{"any": []}'])
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    for form, content in ((ResponseFormat(schema), '{"n": 1}'), (ResponseFormat(), '{"any": []}')):
        turn = asyncio.run(table.ask(user("Go."), response_format=form))
        assert turn.reply.content == content and turn.sampling.grammar is not None


def test_schema_that_nothing_can_keep_to(set_table: SetTable) -> None:
    """A schema that llguidance does not take is refused with its words, before anything is sampled."""
    table = set_table([], "chatml-tools")
    wrong = {"type": "object", "properties": {"a": {"type": "strin"}}}
    for fields, param in (
        ({"response_format": ResponseFormat(wrong)}, "response_format"),
        ({"tools": (ToolSpec("f", parameters=wrong, strict=True),)}, "tools"),
    ):
        with pytest.raises(AgentError, match="Invalid type: strin") as caught:
            asyncio.run(table.ask(user("Go."), **fields))
        assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_schema", param)
    assert table.session.stats().num_turns == 0


def test_tools_that_cannot_act_are_not_refused(set_table: SetTable) -> None:
    """A template without tools refuses them, unless none of them may be called anyway."""
    table = set_table(["Hi."])
    with pytest.raises(AgentError, match="does not show tools"):
        asyncio.run(table.ask(user("Go."), tools=(ADD,)))
    assert asyncio.run(table.ask(user("Go."), tools=(ADD,), tool_choice="none")).reply.content == "Hi."
