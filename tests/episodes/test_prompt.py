from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ludus.types import ForkReason, Message
from tests.episodes.conftest import SetTable, user


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(lambda m: [user("Guess again."), *m[1:]], "edit", id="an earlier message was edited"),
        pytest.param(lambda m: [m[0], replace(m[1], content="8"), *m[2:]], "edit", id="the reply was edited"),
        pytest.param(lambda m: m[2:], "truncated", id="old messages were dropped"),
    ],
)
def test_changed_history_forks_with_its_reason(set_table: SetTable, change: object, reason: ForkReason) -> None:
    """A history that was changed is rendered anew; credit still follows, and one example is kept."""
    table = set_table(["7", "9", "fine"])
    assert callable(change)

    async def play() -> None:
        messages = [user("Guess.")]
        for _ in range(2):
            turn = await table.ask(*messages)
            messages += [turn.reply, user("higher")]
        changed = change(messages)
        forked = await table.ask(*changed)
        assert (forked.fork, forked.follows, forked.prefix) == (reason, turn.id, None)
        assert table.seen(forked) == table.rendered(*changed) + "fine<|im_end|>"
        stats = table.session.stats()
        assert stats.forks == {reason: 1}
        example = table.session.fork_examples()[reason]
        assert (example.number, forked.follows) == (stats.num_turns, turn.id)
        assert example.seen != example.shown

    asyncio.run(play())


def test_stripped_reasoning_forks_tokens_not_credit(set_table: SetTable) -> None:
    """A template that hides earlier thinking forks the tokens by name; the turn still follows its predecessor."""
    table = set_table(["<think>\nIt is 7.\n</think>\n\n7", "<think>\nUp.\n</think>\n\n9"], "qwen3.jinja")

    async def play() -> None:
        first = await table.ask(user("Guess."))
        assert (first.reply.reasoning, first.reply.content) == ("It is 7.", "7")
        second = await table.ask(user("Guess."), first.reply, user("higher"))
        assert (second.fork, second.follows, second.prefix) == ("reasoning_stripped", first.id, None)
        assert "It is 7." not in table.seen(second)
        assert "It is 7." in table.session.fork_examples()["reasoning_stripped"].seen

    asyncio.run(play())


def test_kept_reasoning_extends(set_table: SetTable) -> None:
    """A template that keeps earlier thinking extends the tokens."""
    table = set_table(["<think>\nIt is 7.\n</think>\n\n7", "9"], "keepthinking.jinja")

    async def play() -> None:
        first = await table.ask(user("Guess."))
        second = await table.ask(user("Guess."), first.reply, user("higher"))
        assert (second.fork, second.prefix) == (None, first.id)

    asyncio.run(play())


def test_extension_found_by_tokens_is_no_fork(set_table: SetTable) -> None:
    """Messages that were cut differently but render to the same tokens extend them: tokens are the truth."""
    table = set_table(["7", "9"])

    async def play() -> None:
        first = await table.ask(user("Guess."))
        joined = user("Guess.<|im_end|>\n<|im_start|>assistant\n7<|im_end|>\n<|im_start|>user\nhigher")
        second = await table.ask(joined)
        assert (second.prefix, second.follows, second.fork) == (first.id, first.id, None)

    asyncio.run(play())


def test_equal_text_with_other_tokens_is_retokenised(set_table: SetTable) -> None:
    """Where the text is the same and only the tokens differ, the fork says so."""
    table = set_table([])
    spelled = [table.text.tokenizer.encode(letter)[0] for letter in "number"]
    table = set_table([spelled, "9"])

    async def play() -> None:
        await table.ask(user("Guess."))
        joined = user("Guess.<|im_end|>\n<|im_start|>assistant\nnumber<|im_end|>\n<|im_start|>user\nhigher")
        second = await table.ask(joined)
        assert second.fork == "retokenised"

    asyncio.run(play())


def test_same_request_twice_is_two_samples(set_table: SetTable) -> None:
    """Equal requests without a retry key are siblings: neither follows the other."""
    table = set_table(["7", "8", "9"])

    async def play() -> None:
        first = await table.ask(user("Guess."))
        history = (user("Guess."), first.reply, user("higher"))
        one, two = await table.ask(*history), await table.ask(*history)
        assert (one.reply.content, two.reply.content) == ("8", "9")
        assert one.follows == two.follows == one.prefix == two.prefix == first.id

    asyncio.run(play())


def test_a_branch_can_be_taken_from_any_turn(set_table: SetTable) -> None:
    """After going on, an agent may return to an earlier turn and extend that one's tokens."""
    table = set_table(["7", "8", "9"])

    async def play() -> None:
        first = await table.ask(user("Guess."))
        await table.ask(user("Guess."), first.reply, user("higher"))
        other = await table.ask(user("Guess."), first.reply, user("lower"))
        assert (other.prefix, other.fork) == (first.id, None)

    asyncio.run(play())


def test_template_arguments_are_part_of_the_conversation(set_table: SetTable) -> None:
    """Template arguments are remembered with their turn: unchanged ones extend, changed ones that show are an edit."""
    table = set_table(["7", "8", "9"], "qwen3.jinja")

    async def play() -> None:
        off = {"enable_thinking": False}
        first = await table.ask(user("Guess."), template_kwargs=off)
        assert table.seen(first).endswith("<think>\n\n</think>\n\n7<|im_end|>")
        assert first.reply == Message("assistant", "7")

    asyncio.run(play())


WORDS = st.text(alphabet='ab7 \n<{"é', max_size=6)
ACTIONS = st.lists(st.sampled_from(["go on", "again", "edit", "drop", "back"]), max_size=6)


@pytest.mark.parametrize("template", [None, "chatml-tools", "qwen2.jinja"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS, replies=st.lists(WORDS, min_size=7, max_size=7))
def test_engine_sees_what_the_template_renders(
    set_table: SetTable, template: str | None, actions: list[str], replies: list[str]
) -> None:
    """Whatever an agent does with its history, the path of a turn reads as the template renders it, blanks aside."""
    table = set_table(replies, template)

    async def play() -> None:
        messages = [user("Guess.")]
        turn = await table.ask(*messages)
        for step, action in enumerate(actions):
            if action != "again":
                messages += [turn.reply, user(f"step {step}")]
            if action == "edit":
                messages[0] = user(f"Guess {step}.")
            elif action == "drop":
                del messages[:2]
            elif action == "back":
                messages = messages[:1]
            turn = await table.ask(*messages)
            sampled = table.text.tokenizer.decode(turn.sampled.token_ids)
            shown = table.rendered(*messages) + sampled
            assert "".join(table.seen(turn).split()) == "".join(shown.split())
            assert turn.fork is None or turn.prefix != turn.follows

    asyncio.run(play())
    record = table.session.close("done")
    assert record.num_sampled_tokens == table.engine.stats().num_sampled_tokens
