from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from ludus.engines.scripted import ScriptedEngine
from ludus.errors import AgentError, UserError
from ludus.text.parsers.base import ContentDelta, Delta, ToolCallBroken, ToolCallDelta, collect
from ludus.types import ChatRequest, Message, Sampling
from tests.episodes.conftest import ADD, SetTable, user

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1,   "b": 2}}\n</tool_call>'


def test_first_turn_is_what_the_template_renders(set_table: SetTable) -> None:
    """The engine sees the rendered prompt, and the path of the turn is that prompt and the sampled tokens."""
    table = set_table(["Seven."])
    turn = asyncio.run(table.ask(user("Guess.")))
    assert table.seen(turn) == table.rendered(user("Guess.")) + "Seven.<|im_end|>"
    assert turn.reply == Message("assistant", "Seven.")
    assert (turn.prefix, turn.follows, turn.fork) == (None, None, None)
    assert turn.id.startswith("chatcmpl-") and len(turn.id) == len("chatcmpl-") + 24
    assert turn.finish_reason == "stop"


def test_later_turns_extend_the_tokens_exactly(set_table: SetTable) -> None:
    """Over many turns the engine sees what the template would show, on the very tokens it sampled."""
    table = set_table(["Is it 10?", "  5? \n", "7", "", "8."])

    async def play() -> None:
        messages = [user("Guess. Reply with one number.")]
        previous = None
        for _ in range(5):
            turn = await table.ask(*messages)
            sampled_ids = turn.sampled.token_ids
            assert turn.fork is None
            assert turn.prefix == turn.follows == previous
            path = table.session.snapshot().path_ids(turn.node)
            assert path == table.engine.calls[-1].prompt_ids + sampled_ids
            assert table.seen(turn) == table.rendered(*messages) + table.text.tokenizer.decode(sampled_ids)
            messages += [turn.reply, user("higher")]
            previous = turn.id

    asyncio.run(play())
    assert table.session.stats().forks == {}
    assert table.session.snapshot().num_sampled_tokens == table.session.stats().num_tokens


def test_unusual_tokens_stay_as_sampled(set_table: SetTable) -> None:
    """A reply whose tokens are not those its text encodes to is extended on its own tokens."""
    table = set_table([])
    spelled = [table.text.tokenizer.encode(letter)[0] for letter in "number"]
    table = set_table([spelled, "yes"])

    async def play() -> None:
        first = await table.ask(user("Guess."))
        assert first.reply.content == "number"
        second = await table.ask(user("Guess."), first.reply, user("lower"))
        assert second.prefix == first.id and second.fork is None
        assert tuple(spelled) == first.sampled.token_ids[:-1] != table.text.tokenizer.encode("number")

    asyncio.run(play())


def test_tool_call_round_trip(set_table: SetTable) -> None:
    """A sampled call becomes a tool call; echoed with its result the tokens stay as sampled, blanks included."""
    table = set_table([CALL, "3"], "chatml-tools")

    async def play() -> None:
        first = await table.ask(user("Add."), tools=(ADD,))
        (call,) = first.reply.tool_calls
        assert (call.name, json.loads(call.arguments)) == ("add", {"a": 1, "b": 2})
        assert first.finish_reason == "tool_calls"
        # SDKs load and dump arguments; the call is the same call
        echo = replace(first.reply, tool_calls=(replace(call, arguments='{"b":2,"a":1}'),))
        result = Message("tool", "3", tool_call_id=call.id)
        second = await table.ask(user("Add."), echo, result, tools=(ADD,))
        assert (second.prefix, second.follows, second.fork) == (first.id, first.id, None)
        assert '"a": 1,   "b": 2' in table.seen(second)
        assert table.seen(second).endswith(
            "<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n3<|im_end|>"
        )

    asyncio.run(play())


def test_tools_need_a_template_that_shows_them(set_table: SetTable) -> None:
    """Tools given to a template that drops them are refused by name, and nothing is sampled."""
    table = set_table(["never"])
    with pytest.raises(AgentError) as caught:
        asyncio.run(table.ask(user("Add."), tools=(ADD,)))
    assert (caught.value.code, caught.value.param) == ("tools_unsupported", "tools")
    assert table.engine.calls == ()
    assert table.session.stats().refused == {"tools_unsupported": 1}


def test_several_choices_share_their_prompt(set_table: SetTable) -> None:
    """n choices are n turns on one prompt, with seeds in a row; any of them can be extended."""
    table = set_table(["one", "two", "three", "and so on"])

    async def play() -> None:
        request = ChatRequest((user("Guess."),), n=3, sampling=Sampling(seed=40))
        heard: dict[int, list[Delta]] = {0: [], 1: [], 2: []}
        ids: list[str] = []
        turns = await table.session.complete(
            request, lambda idx, delta: heard[idx].append(delta), on_start=lambda turn_ids, _: ids.extend(turn_ids)
        )
        assert [turn.reply.content for turn in turns] == ["one", "two", "three"]
        assert [collect(heard[idx]).content for idx in range(3)] == ["one", "two", "three"]
        assert [turn.sampling.seed for turn in turns] == [40, 41, 42]
        assert [turn.id for turn in turns] == ids and len(set(ids)) == 3
        nodes = table.session.snapshot().nodes
        assert len({nodes[turn.node].parent for turn in turns}) == 1
        after = await table.ask(user("Guess."), turns[1].reply, user("higher"))
        assert after.prefix == turns[1].id

    asyncio.run(play())


def test_deltas_leave_as_tokens_are_sampled(set_table: SetTable) -> None:
    """Text reaches the agent before the answer is finished, and adds up to the reply."""
    table = set_table(["the quick brown fox jumps over the lazy dog"])
    num_sampled: list[int] = []
    heard: list[Delta] = []

    def on_delta(idx: int, delta: Delta) -> None:
        heard.append(delta)
        num_sampled.append(table.engine.stats().num_sampled_tokens)

    turn = asyncio.run(table.ask(user("Speak."), on_delta=on_delta))
    assert collect(heard).content == turn.reply.content
    assert num_sampled[0] <= 3 < len(turn.sampled.token_ids)
    assert num_sampled == sorted(num_sampled) and len(set(num_sampled)) > 3


def test_streamed_calls_add_up(set_table: SetTable) -> None:
    """Streamed tool calls are those of the reply, ids included."""
    table = set_table(["I add. " + CALL + "\n" + CALL], "chatml-tools")
    heard: list[Delta] = []
    turn = asyncio.run(table.ask(user("Add."), tools=(ADD,), on_delta=lambda idx, delta: heard.append(delta)))
    assert collect(heard).tool_calls == turn.reply.tool_calls
    assert len({call.id for call in turn.reply.tool_calls}) == 2
    assert any(isinstance(delta, ToolCallDelta) for delta in heard)


def test_stop_strings_never_leak(set_table: SetTable) -> None:
    """The reply and its deltas end before the stop string; its tokens stay in the record and are extended."""
    table = set_table(["higher or lower than 7", "yes"])
    heard: list[Delta] = []

    async def play() -> None:
        sampling = Sampling(stop=("lower than",))
        first = await table.ask(user("Guess."), sampling=sampling, on_delta=lambda idx, delta: heard.append(delta))
        assert first.reply.content == "higher or "
        assert "".join(delta.text for delta in heard if isinstance(delta, ContentDelta)) == "higher or "
        assert table.seen(first).endswith("higher or lower than")
        assert first.sampled.stop_string == "lower than"
        second = await table.ask(user("Guess."), first.reply, user("Well?"))
        assert second.prefix == first.id
        assert "higher or lower than<|im_end|>\n" in table.seen(second)

    asyncio.run(play())


def test_answer_cut_by_length_is_closed_by_the_template(set_table: SetTable) -> None:
    """A reply without its stop token gets the template's closing text before the next message."""
    table = set_table(["seven or eight", "yes"])

    async def play() -> None:
        first = await table.ask(user("Guess."), sampling=Sampling(max_new_tokens=2))
        assert first.finish_reason == "length"
        second = await table.ask(user("Guess."), first.reply, user("Well?"))
        assert second.prefix == first.id
        assert table.seen(second) == table.rendered(user("Guess."), first.reply, user("Well?")) + "yes<|im_end|>"

    asyncio.run(play())


def test_sub_agents_run_at_once(set_table: SetTable) -> None:
    """Two sub-agents in flight at once are recorded apart, both as consequences of the turn that called them."""

    table = set_table(lambda call: CALL if len(table.engine.calls) == 1 else "done", "chatml-tools")

    async def play() -> None:
        first = await table.ask(user("Add."), tools=(ADD,))
        one, two = await asyncio.gather(
            table.ask(user("You are the first helper."), agent="one"),
            table.ask(user("You are the second helper."), agent="two"),
        )
        assert one.follows == two.follows == first.id
        assert one.prefix is two.prefix is None
        assert table.seen(one) == table.rendered(user("You are the first helper.")) + "done<|im_end|>"
        (call,) = first.reply.tool_calls
        last = await table.ask(user("Add."), first.reply, Message("tool", "3", tool_call_id=call.id), tools=(ADD,))
        assert last.prefix == last.follows == first.id

    asyncio.run(play())


def test_many_sessions_and_threads_share_a_recorder(set_table: SetTable) -> None:
    """Sessions driven from threads with loops of their own do not mix."""
    table = set_table(lambda call: f"{len(call.prompt_ids)}")

    async def play(name: str) -> None:
        messages = [user(f"I am {name}.")]
        for _ in range(4):
            turn = await table.ask(*messages, agent=name)
            messages += [turn.reply, user("Go on.")]

    async def main() -> None:
        await asyncio.gather(*(asyncio.to_thread(asyncio.run, play(f"agent {idx}")) for idx in range(4)))

    asyncio.run(main())
    record = table.session.snapshot()
    assert len(record.turns) == 16
    for turn in record.turns:
        assert table.seen(turn) == table.rendered(*turn.messages) + f"{turn.reply.content}<|im_end|>"
        assert (turn.prefix is None) == (len(turn.messages) == 1)


def test_undecoded_call_is_kept_and_logged(set_table: SetTable, caplog: pytest.LogCaptureFixture) -> None:
    """A call that cannot be decoded is content, stands in the turn, and is warned of once; it announces no calls."""
    broken = '<tool_call>{"name": "add", "arguments": {"a": 1}'
    table = set_table([f"Hm. {broken}"], "chatml-tools")
    deltas: list[Delta] = []
    turn = asyncio.run(table.ask(user("Add."), tools=(ADD,), on_delta=lambda _, delta: deltas.append(delta)))
    assert turn.reply == Message("assistant", f"Hm. {broken}")
    assert turn.undecoded == (broken,)
    assert turn.finish_reason == "stop"
    assert ToolCallBroken(0) in deltas
    assert table.session.snapshot().turns[0].undecoded == (broken,)
    (warned,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned.startswith("Failed to decode tool call: ") and "arguments" in warned


def test_tool_choice_none_reads_no_calls(set_table: SetTable) -> None:
    """Where no tool may be called, a call is content, and the model is shown the tools all the same."""
    table = set_table([CALL], "chatml-tools")
    turn = asyncio.run(table.ask(user("Add."), tools=(ADD,), tool_choice="none"))
    assert turn.reply == Message("assistant", CALL)
    assert '"add"' in table.seen(turn)


def test_seeds_reproduce_a_run(set_table: SetTable) -> None:
    """The same session seed gives the same seeds, in whatever order prompts come; equal ones differ."""

    def seeds(session_seed: int, names: str) -> dict[str, list[int | None]]:
        table = set_table(lambda call: "yes", sampling=Sampling(seed=session_seed))
        drawn: dict[str, list[int | None]] = {name: [] for name in names}

        async def play(name: str) -> None:
            for _ in range(2):
                turn = await table.ask(user(name))
                drawn[name].append(turn.sampling.seed)
                assert turn.sampled.seed == turn.sampling.seed

        async def main() -> None:
            for name in names:
                await play(name)

        asyncio.run(main())
        return drawn

    first = seeds(1, "ab")
    assert first == seeds(1, "ba")
    assert first != seeds(2, "ab")
    assert len({seed for row in first.values() for seed in row}) == 4


def test_pinned_fields_win(set_table: SetTable) -> None:
    """A pinned field keeps the session's value whatever a request asks for, and is reported."""
    table = set_table(["a", "b"], sampling=Sampling(temperature=0.5), pinned=("temperature", "top_p"))
    request = ChatRequest((user("Guess."),), sampling=Sampling(temperature=0.9, top_p=1.0, stop=("x",)))
    assert table.session.pinned_fields(request) == ("temperature",)
    (turn,) = asyncio.run(table.session.complete(request))
    assert (turn.sampling.temperature, turn.sampling.stop) == (0.5, ("x",))
    assert table.engine.calls[0].sampling.temperature == 0.5
    with pytest.raises(UserError, match="no field of Sampling; known: temperature"):
        set_table([], pinned=("temprature",))


def test_prompt_that_fills_the_context_is_refused(set_table: SetTable) -> None:
    """Messages that leave no room for an answer get a typed 400 naming both numbers; less room cuts the answer."""
    table = set_table(["the quick brown fox"] * 2, context_length=64)
    with pytest.raises(AgentError, match="context of 64") as caught:
        asyncio.run(table.ask(user("z" * 100)))
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "context_length_exceeded", "messages")
    turn = asyncio.run(table.ask(user("zq" * 5), sampling=Sampling(max_new_tokens=500)))
    assert len(table.session.snapshot().path_ids(turn.node)) <= 64


def test_a_text_that_no_context_holds_is_not_tokenized(set_table: SetTable) -> None:
    """A megabyte takes seconds to tokenize, in which nobody else would be answered."""
    table = set_table(["never said"], context_length=64)
    longest = table.text.tokenizer.longest_token
    with pytest.raises(AgentError, match="characters, which no 64 tokens hold") as caught:
        asyncio.run(table.ask(user("z" * (64 * longest + 1))))
    assert caught.value.code == "context_length_exceeded"
    assert table.session.stats().num_encoded_chars == 0


def test_record_is_what_the_engine_saw(set_table: SetTable) -> None:
    """Logprobs, versions and seeds of the record are the engine's, token by token."""
    table = set_table(["one", "two"])

    async def play() -> None:
        first = await table.ask(user("Guess."))
        alone = await ScriptedEngine(["one"], table.text.tokenizer).generate(table.engine.calls[0])
        assert first.sampled == alone

    asyncio.run(play())
    assert "turns=1" in repr(table.session)


def test_only_what_is_new_is_rendered_and_tokenized(set_table: SetTable) -> None:
    """Turn after turn, and on a branch from an earlier turn, the work is that of the new messages."""
    table = set_table([str(number) for number in range(6)], template="chatml-tools")

    async def play() -> None:
        messages, branch, tail = [user("Guess.")], None, ""
        for number in range(5):
            before = table.session.stats()
            turn = await table.ask(*messages)
            after = table.session.stats()
            assert table.seen(turn) == table.rendered(*messages) + f"{number}<|im_end|>"
            if number:
                assert after.num_rendered_messages - before.num_rendered_messages == 3
                assert after.num_encoded_chars - before.num_encoded_chars == len(tail)
            messages += [turn.reply, user("Lower.")]
            branch = branch or [*messages[:-1], user("Higher.")]
            tail = table.rendered(*messages).removeprefix(table.seen(turn))
        assert branch is not None
        turn = await table.ask(*branch)
        assert table.session.stats().num_rendered_messages - after.num_rendered_messages == 3
        assert table.seen(turn) == table.rendered(*branch) + "5<|im_end|>"

    asyncio.run(play())
    stats = table.session.stats()
    assert (stats.num_turns, stats.num_nodes, stats.forks) == (6, 12, {})
