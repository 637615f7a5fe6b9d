"""Who plays what: the head's side of rollout workers, without processes."""

import asyncio
import json

import pytest

from ludus.agents.adapter import About
from ludus.episodes.reward import Result
from ludus.errors import UserError
from ludus.rollout.handout import Handout
from ludus.rollout.remote import AgentName
from ludus.rollout.wire import ReportBody, TakenBody, from_wire, seat_body, to_wire


class Asked:
    """A request of a worker."""

    def __init__(self, path, **body):
        self.path_params = {"rest": path}
        self._body = json.dumps(body).encode()

    async def body(self):
        return self._body


def seat(name):
    return seat_body(name, "agent", {"question": "?"}, "http://here/v1", "key", About(name, "row0", "g0"))


async def take(handout, index=0, attempt=0, free=1, has=()):
    answer = await handout.answer(Asked("take", index=index, attempt=attempt, free=free, has=list(has)))
    return TakenBody.model_validate_json(answer.body)


async def end(handout, ticket, index=0, attempt=0):
    report = ReportBody(index=index, attempt=attempt, ticket=ticket, ending="returned", value={"number": 1.0})
    await handout.answer(Asked("end", **report.model_dump()))


def test_an_episode_goes_to_a_worker_and_comes_back():
    """A worker that waits is told at once, and what it reports is how the playing ended."""

    async def main():
        handout = Handout()
        handout.admit(0, 0)
        asking = asyncio.create_task(take(handout))
        await asyncio.sleep(0)
        playing = asyncio.create_task(handout.play(seat("a")))
        assert [each.ticket for each in (await asking).seats] == ["a"]
        await end(handout, "a")
        await end(handout, "a")  # told twice
        return await playing

    assert asyncio.run(main()).read_ending().value == 1.0


def test_what_a_worker_never_received_is_sent_again():
    """An answer that broke off on its way is sent again when the worker asks anew, and no seat is played twice."""

    async def main():
        handout = Handout()
        handout.admit(0, 0)
        playing = [asyncio.create_task(handout.play(seat(name))) for name in "ab"]
        await asyncio.sleep(0)
        first = await take(handout, free=1)
        again = await take(handout, free=2)
        assert [each.ticket for each in first.seats] == ["a"]
        assert [each.ticket for each in again.seats] == ["a", "b"]
        asking = asyncio.create_task(take(handout, free=0, has="ab"))
        await asyncio.sleep(0)
        newer = asyncio.create_task(take(handout, free=0, has="ab"))
        assert not (await asking).seats  # superseded
        await end(handout, "a")
        await end(handout, "b")
        newer.cancel()
        return await asyncio.gather(*playing)

    assert len(asyncio.run(main())) == 2


def test_a_lost_worker_loses_its_episodes_alone():
    """What the lost one played ends as lost; what waited goes to another; its late report is not heard."""

    async def main():
        handout = Handout()
        handout.admit(0, 0)
        handout.admit(1, 0)
        playing = {name: asyncio.create_task(handout.play(seat(name))) for name in "ab"}
        await asyncio.sleep(0)
        assert (await take(handout, 0)).seats[0].ticket == "a"
        handout.lose(0)
        assert await playing["a"] is None
        await end(handout, "a", 0)
        assert (await take(handout, 1)).seats[0].ticket == "b"
        await end(handout, "b", 1)
        assert await playing["b"] is not None
        return handout

    assert "workers=1, places=0, playing=0" in repr(asyncio.run(main()))


def test_what_is_no_report_is_refused():
    """A body that is not of the wire is answered with 400 and why, for asking again would not help."""

    async def main():
        return await Handout().answer(Asked("end", ticket="a")), await Handout().answer(Asked("take", free="many"))

    for answer in asyncio.run(main()):
        assert answer.status_code == 400 and b"index" in answer.body


def test_what_is_called_off_ends_at_the_worker():
    """A worker is told what nobody waits for; what had not reached one is forgotten."""

    async def main():
        handout = Handout()
        handout.admit(0, 0)
        playing = [asyncio.create_task(handout.play(seat(name))) for name in "ab"]
        await asyncio.sleep(0)
        await take(handout, free=1)
        asking = asyncio.create_task(take(handout, free=1, has="a"))
        assert (await asking).seats[0].ticket == "b"
        asking = asyncio.create_task(take(handout, free=0, has="ab"))
        await asyncio.sleep(0)
        for task in playing:
            task.cancel()
        assert set((await asking).cancelled) <= {"a", "b"}
        await asyncio.gather(*playing, return_exceptions=True)
        gone = asyncio.create_task(handout.play(seat("c")))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        last = asyncio.create_task(handout.play(seat("d")))
        await asyncio.sleep(0)
        assert [each.ticket for each in (await take(handout, free=2)).seats] == ["d"]
        handout.lose(0)
        assert await last is None

    asyncio.run(main())


def test_a_worker_waits_until_it_is_admitted():
    """A worker that asks before it was admitted is answered when it is, and not before."""

    async def main():
        handout = Handout()
        playing = asyncio.create_task(handout.play(seat("a")))
        asking = asyncio.create_task(take(handout))
        await asyncio.sleep(0.01)
        assert not asking.done()
        handout.admit(0, 0)
        assert [each.ticket for each in (await asking).seats] == ["a"]
        await end(handout, "a")
        await playing

    asyncio.run(main())


def test_places_follow_the_workers():
    """An episode's time begins when a worker has a place ready for it; one that must be made ready again is none."""

    async def main():
        handout = Handout()
        waiting = [asyncio.create_task(handout.wait_place()) for _ in range(3)]
        handout.admit(0, 0)
        asking = asyncio.create_task(take(handout, free=0))
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in waiting)
        asking.cancel()
        asking = asyncio.create_task(take(handout, free=1))
        await waiting[0]
        playing = asyncio.create_task(handout.play(seat("a")))
        await asking
        await end(handout, "a")
        await playing
        handout.leave_place()
        asking = asyncio.create_task(take(handout, free=0))
        await asyncio.sleep(0.01)
        assert not waiting[1].done()
        waiting[1].cancel()
        asking.cancel()
        asking = asyncio.create_task(take(handout, free=1))
        await waiting[2]
        asking.cancel()

    asyncio.run(main())


@pytest.mark.parametrize(
    "value",
    [
        None,
        1.0,
        "text",
        {"chatcmpl-1": 2.0},
        (1.0, {"success": 1.0}),
        Result(0.5, {"success": 1.0}, {"note": [1, "a"]}),
    ],
)
def test_what_agents_return_travels(value):
    """Whatever counts as a reward is the same on the other side."""
    assert from_wire(json.loads(json.dumps(to_wire(value)))) == value


def test_what_is_no_reward_is_shown_as_it_was():
    """A value of another kind stays where it was, and an error can still name it."""
    assert repr(from_wire(to_wire([1, 2]))) == "[1, 2] of type list"
    with pytest.raises(UserError, match="no value of an agent"):
        from_wire([1])


def test_agents_travel_by_name():
    """A class and a function are found by their module; what only this process has is refused with what helps."""
    assert AgentName.of(Asked, None).reference.endswith("test_handout:Asked")
    assert AgentName.of("agent.py:Agent", {"a": 1}).reference.startswith("/")
    name = AgentName.of("pkg.mod:Agent", {"a": 1})
    assert AgentName.of_label(name.label) == name
    with pytest.raises(UserError, match="an object of this process"):
        AgentName.of(Asked("take"), None)
    with pytest.raises(UserError, match="inside a function"):
        AgentName.of(lambda data: 1.0, None)
    with pytest.raises(UserError, match="workflow_kwargs cannot travel"):
        AgentName.of("a:b", {"x": object()})


def test_rows_travel_as_json():
    """A column that is no JSON is named."""
    with pytest.raises(UserError, match="image: "):
        seat_body("a", "agent", {"question": "?", "image": object()}, "", "", About("a", "row0", "g0"))
