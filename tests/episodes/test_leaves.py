"""Which turns a number is for, in conversations as the recorder keeps them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations

import pytest

from ludus.episodes.episode import finish
from ludus.episodes.outcome import Returned
from ludus.episodes.reward import Result, RewardSheet, leaves, masked_answers, not_chosen
from ludus.episodes.spec import SessionSpec
from ludus.errors import AgentError, UserError
from ludus.types import ChatRequest, Message, Turn
from tests.episodes.conftest import ADD, SetTable, Table, user
from tests.episodes.trees import random_session


def named(table: Table, asked: Mapping[str, Turn]) -> tuple[set[str], set[str]]:
    """The names of the leaves and of the answers that were not chosen."""
    turns = table.session.snapshot().turns
    chosen, others = leaves(turns), not_chosen(turns)
    names = {turn.id: name for name, turn in asked.items()}
    return {names[each] for each in chosen}, {names[each] for each in others}


def test_workers_that_run_at_once_are_all_rewarded(set_table: SetTable) -> None:
    """A plan, three workers on different branches: each is a leaf, whichever finished last."""

    async def main() -> None:
        table = set_table(["plan", "a", "b", "c"])
        plan = await table.ask(user("go"))
        said = (user("go"), plan.reply)
        workers = await asyncio.gather(*(table.ask(*said, user(f"part {name}")) for name in "123"))
        asked = {"plan": plan, **dict(zip("123", workers, strict=True))}
        assert named(table, asked) == ({"1", "2", "3"}, set())

    asyncio.run(main())


def test_workers_that_are_merged_have_all_led_to_it(set_table: SetTable) -> None:
    """Five equal prompts and a merge that tells none of their answers again: nobody was chosen among them."""

    async def main() -> None:
        table = set_table([*"abcde", "all of it"])
        workers = [await table.ask(user("one idea")) for _ in range(5)]
        merged = await table.ask(user("merge: a b c d e"))
        record = table.session.snapshot()
        assert merged.follows is None and not not_chosen(record.turns)
        assert set(leaves(record.turns)) == {merged.id, *(turn.id for turn in workers)}

    asyncio.run(main())


@pytest.mark.parametrize("template", [None, "chatml-tools"])
def test_of_several_answers_the_one_gone_on_with_is_chosen(set_table: SetTable, template: str | None) -> None:
    """n=3 at the end rewards each; once the conversation goes on with one, the others are masked."""

    async def main() -> None:
        table = set_table(["a", "b", "c", "d"], template)
        three = await table.session.complete(ChatRequest((user("go"),), n=3))
        assert set(leaves(table.session.snapshot().turns)) == {turn.id for turn in three}
        after = await table.ask(user("go"), three[1].reply, user("and then?"))
        episode = finish(SessionSpec(), table.session.snapshot(), Returned(1.0), started_at=0.0)
        assert episode.rewards == {after.id: 1.0} and episode.reward == 1.0
        assert masked_answers(episode) == {three[0].id, three[2].id}
        by_name = finish(SessionSpec(), table.session.snapshot(), Returned({three[0].id: 1.0}), started_at=0.0)
        assert masked_answers(by_name) == {three[2].id}
        as_return = replace(by_name, has_returns=True)
        assert not masked_answers(as_return)

    asyncio.run(main())


def test_a_reply_told_again_in_other_words_is_chosen(set_table: SetTable) -> None:
    """Reasoning stripped, blanks around it, messages before it dropped: the reply stands among the messages still."""

    async def main() -> None:
        table = set_table(["<think>\nhm\n</think>\n\nfirst", "<think>\nno\n</think>\n\nsecond", "end", "end"])
        one = await table.ask(Message("system", "be brief"), user("go"))
        two = await table.ask(Message("system", "be brief"), user("go"))
        told = Message("assistant", f" {two.reply.content} ")
        after = await table.ask(user("go"), replace(told, reasoning=None), user("and then?"))
        assert named(table, {"1": one, "2": two, "after": after}) == ({"after"}, {"1"})

    asyncio.run(main())


def test_raw_prompts_go_on_with_the_tokens_that_they_hold(set_table: SetTable) -> None:
    """Two completions of one text; the next prompt holds the tokens of the second."""

    async def main() -> None:
        table = set_table([" one", " two", " three"])
        one, two = await table.session.complete(ChatRequest((), prompt="Once", n=2))
        path = table.session.snapshot().path_ids(two.node)
        (after,) = await table.session.complete(ChatRequest((), prompt=(*path, *table.text.tokenizer.encode(" go"))))
        assert after.prefix == two.id
        assert named(table, {"1": one, "2": two, "after": after}) == ({"after"}, {"1"})

    asyncio.run(main())


def test_another_agent_is_no_alternative(set_table: SetTable) -> None:
    """Two sides of a debate get equal openings; who answers at once is credited beside who takes two turns."""

    async def main() -> None:
        table = set_table(["yes", "no", "because"])
        pro = await table.ask(user("is it so?"), agent="pro")
        con = await table.ask(user("is it so?"), agent="con")
        pro2 = await table.ask(user("is it so?"), pro.reply, user("why?"), agent="pro")
        assert named(table, {"pro": pro, "con": con, "pro2": pro2}) == ({"con", "pro2"}, set())

    asyncio.run(main())


def test_what_an_agent_follows_is_its_own(set_table: SetTable) -> None:
    """An equal prompt of another agent says nothing of where this one's belongs, whoever asked first."""

    async def main() -> None:
        for critic_first in (True, False):
            table = set_table(["plan", "a", "b", "c"])
            plan = await table.ask(user("plan"))
            asked = [("critic", None), ("", plan.id), ("", plan.id)]
            for agent, follows in asked if critic_first else asked[::-1]:
                assert (await table.ask(user("part"), agent=agent)).follows == follows

    asyncio.run(main())


def test_workers_that_ask_the_same_at_once_are_all_credited(set_table: SetTable) -> None:
    """Whenever requests of one prompt overlap, and in whichever order they end, none is an alternative; the choices of
    one of them are."""

    async def main() -> None:
        table = set_table(["a", "b", "c", "d", "e"])
        one = await table.ask(user("vote"))
        two, three = await table.session.complete(ChatRequest((user("vote"),), n=2))
        four = await table.ask(user("vote"))
        more = await table.ask(user("vote"), three.reply, user("the tool says 2"))
        turns = table.session.snapshot().turns
        assert not_chosen(turns) == {one.id, two.id, four.id}  # one after the other: asked again
        for ends in permutations((3.0, 4.0, 5.0, 6.0)):
            asked = (one.id, 0.0), (two.id, 1.0), (three.id, 1.0), (four.id, 2.0)
            times = {id_: (start, end) for (id_, start), end in zip(asked, ends, strict=True)} | {more.id: (7.0, 8.0)}
            at_once = [replace(turn, started_at=times[turn.id][0], finished_at=times[turn.id][1]) for turn in turns]
            assert not_chosen(at_once) == {two.id}
            assert set(leaves(at_once)) == {one.id, four.id, more.id}

    asyncio.run(main())


def test_a_second_attempt_is_no_alternative(set_table: SetTable) -> None:
    """What is asked again after the first answer was gone on with stands for itself."""

    async def main() -> None:
        table = set_table(["a", "b", "c", "d", "e"])
        first = await table.ask(user("go"))
        more = await table.ask(user("go"), first.reply, user("on"))
        second = await table.ask(user("go"))
        asked = {"first": first, "more": more, "second": second}
        assert named(table, asked) == ({"more", "second"}, set())
        asked["third"] = await table.ask(user("go"))
        asked["on"] = await table.ask(user("go"), asked["third"].reply, user("on"))
        assert named(table, asked) == ({"more", "on"}, {"second"})

    asyncio.run(main())


def test_a_try_that_failed_is_no_answer(set_table: SetTable) -> None:
    """An aborted request and the one that was sent instead, while the first still ran, are not workers at once."""

    async def main() -> None:
        table = set_table(["a", "b", "c", "d"])
        tried = [await table.ask(user("go")) for _ in range(3)]
        more = await table.ask(user("go"), tried[2].reply, user("on"))
        turns = list(table.session.snapshot().turns)
        broken = replace(turns[0].sampled, stop_reason="abort")
        turns[0] = replace(turns[0], sampled=broken, finished_at=turns[1].started_at + 1.0)
        assert not_chosen(turns) == {tried[1].id} and leaves(turns) == (more.id,)

    asyncio.run(main())


def test_each_call_has_an_answer_of_its_own(set_table: SetTable) -> None:
    """Two equal calls served one after the other are two sub-agents; a third request is a question asked again."""

    async def main() -> None:
        call = '<tool_call>\n{"name": "add", "arguments": {"task": "find it"}}\n</tool_call>'
        table = set_table([f"{call}\n{call}", "a", "b", "c", "d"], "chatml-tools")
        asked = {"main": await table.ask(user("go"), tools=(ADD,))}
        assert len(asked["main"].reply.tool_calls) == 2
        for name in ("one", "two"):
            asked[name] = await table.ask(user("find it"))
        asked["more"] = await table.ask(user("find it"), asked["two"].reply, user("sure?"))
        assert {asked[name].follows for name in ("one", "two")} == {asked["main"].id}
        assert named(table, asked) == ({"one", "more"}, set())

    asyncio.run(main())


def test_times_of_a_session_never_go_back(set_table: SetTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's clock is set back between two requests: the second still came after the first was answered."""

    async def main() -> None:
        table = set_table(["a", "b"])
        first = await table.ask(user("go"))
        monkeypatch.setattr("time.time", lambda: first.started_at - 3600)
        second = await table.ask(user("go"))
        assert first.started_at < first.finished_at < second.started_at < second.finished_at

    asyncio.run(main())


def test_what_is_left_out_whole_is_stepped_over(set_table: SetTable) -> None:
    """A number goes to the last turns that are to be trained; to the leaves, if none is."""

    async def main() -> None:
        table = set_table(["a", "b"])
        first = await table.ask(user("go"))
        last = await table.ask(user("go"), first.reply, user("on"))
        record = table.session.snapshot()
        places = {turn.id: range(len(turn.sampled.token_ids)) for turn in (first, last)}
        left = Result(1.0, left_out={last.id: places[last.id]})
        assert finish(SessionSpec(), record, Returned(left), started_at=0.0).rewards == {first.id: 1.0}
        some = Result(1.0, left_out={last.id: (0,)})
        assert finish(SessionSpec(), record, Returned(some), started_at=0.0).rewards == {last.id: 1.0}
        whole = finish(SessionSpec(), record, Returned(Result(1.0, left_out=places)), started_at=0.0)
        assert whole.rewards == {last.id: 1.0} and whole.reward == 1.0

    asyncio.run(main())


def test_the_order_of_turns_changes_nothing() -> None:
    """On random sessions: whichever turn finished first, the same turns are leaves and the same are not chosen."""
    met = 0
    for seed in range(300):
        rng = random.Random(seed)
        turns = list(random_session(rng)[0].turns)
        if all(turn.sampled.stop_reason == "abort" for turn in turns):
            continue
        expected = set(leaves(turns)), not_chosen(turns)
        assert expected[0] and not expected[0] & expected[1]
        met += bool(expected[1])
        rng.shuffle(turns)
        assert (set(leaves(turns)), not_chosen(turns)) == expected
    assert met > 50


def test_names_say_more_than_numbers(set_table: SetTable) -> None:
    """A named reward stands over a number, a later number takes the place of an earlier one, each counts once."""

    async def main() -> None:
        table = set_table(["plan", "a", "b", "c"])
        plan = await table.ask(user("go"))
        sheet = RewardSheet()
        assert sheet.whole is None
        assert sheet.add(0.25, table.session.snapshot().turns) == {plan.id: 0.25}
        one, two = [await table.ask(user("go"), plan.reply, user(name)) for name in "12"]
        turns = table.session.snapshot().turns
        assert sheet.add(1.0, turns) == {one.id: 1.0, two.id: 1.0} and sheet.whole == 1.25
        sheet.add(2.0, turns)
        assert sheet.whole == 2.25
        sheet.add({one.id.replace("chatcmpl-", "msg_"): -1.0}, turns)
        sheet.add(3.0, turns)
        assert sheet.by_turn == {plan.id: 0.25, one.id: -1.0, two.id: 3.0} and sheet.whole == 2.25
        sheet.discount(turns, 0.5)
        assert sheet.are_returns and sheet.by_turn == {plan.id: 0.75, one.id: -1.0, two.id: 3.0}
        with pytest.raises(UserError, match="discounted already"):
            sheet.discount(turns, 0.5)

    asyncio.run(main())


def test_what_cannot_be_rewarded_has_a_code() -> None:
    """Over HTTP the same mistakes are answers, with the codes that clients know."""
    sheet = RewardSheet()
    with pytest.raises(AgentError) as no_turn:
        sheet.add(1.0, ())
    assert (no_turn.value.status, no_turn.value.code) == (400, "no_turn")
    turns = random_session(random.Random(3))[0].turns
    with pytest.raises(AgentError) as unknown:
        sheet.add({"msg_x": 1.0}, turns)
    assert (unknown.value.status, unknown.value.code) == (404, "completion_not_found")
    with pytest.raises(AgentError) as wrong:
        sheet.add("good", turns)
    assert (wrong.value.status, wrong.value.code) == (400, "invalid_value")
    assert sheet.by_turn == {} and sheet.whole is None
