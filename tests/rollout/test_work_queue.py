"""Who plays what: the head's side of rollout workers, without processes."""

import asyncio
import itertools
import json

import pytest

from ludus.agents.adapter import EpisodeInfo
from ludus.episodes.reward import Result
from ludus.errors import AgentError, UserError
from ludus.rollout import work_queue as work_queue_module
from ludus.rollout.remote import AgentName
from ludus.rollout.wire import ReportBody, TakenBody, assignment_body, from_wire, to_wire
from ludus.rollout.work_queue import WorkQueue


class Asked:
    """A request of a worker."""

    def __init__(self, path, **body):
        self.path_params = {"rest": path}
        self._body = json.dumps(body).encode()

    async def stream(self):
        yield self._body


def assignment(name):
    return assignment_body(name, "agent", {"question": "?"}, "http://here/v1", "key", EpisodeInfo(name, "row0", "g0"))


NUMBERS = itertools.count()


async def take(work_queue, index=0, attempt=0, free=1, has=(), number=None):
    number = next(NUMBERS) if number is None else number
    body = {"index": index, "attempt": attempt, "free": free, "has": list(has), "number": number}
    answer = await work_queue.answer(Asked("take", **body), index)
    return TakenBody.model_validate_json(answer.body)


async def end(work_queue, assignment_id, index=0, attempt=0):
    report = ReportBody(
        index=index, attempt=attempt, assignment_id=assignment_id, ending="returned", value={"number": 1.0}
    )
    await work_queue.answer(Asked("end", **report.model_dump()), index)


def test_an_episode_goes_to_a_worker_and_comes_back():
    """A worker that waits is told at once, and what it reports is how the playing ended."""

    async def main():
        work_queue = WorkQueue()
        work_queue.admit(0, 0)
        asking = asyncio.create_task(take(work_queue))
        await asyncio.sleep(0)
        playing = asyncio.create_task(work_queue.play(assignment("a")))
        assert [each.assignment_id for each in (await asking).assignments] == ["a"]
        await end(work_queue, "a")
        await end(work_queue, "a")  # told twice
        return await playing

    assert asyncio.run(main()).read_ending().value == 1.0


def test_what_a_worker_never_received_is_sent_again():
    """An answer that broke off is sent again when the worker asks anew, and no assignment is played twice."""

    async def main():
        work_queue = WorkQueue()
        work_queue.admit(0, 0)
        playing = [asyncio.create_task(work_queue.play(assignment(name))) for name in "ab"]
        await asyncio.sleep(0)
        first = await take(work_queue, free=1)
        again = await take(work_queue, free=2)
        assert [each.assignment_id for each in first.assignments] == ["a"]
        assert [each.assignment_id for each in again.assignments] == ["a", "b"]
        asking = asyncio.create_task(take(work_queue, free=0, has="ab"))
        await asyncio.sleep(0)
        newer = asyncio.create_task(take(work_queue, free=0, has="ab"))
        assert not (await asking).assignments  # superseded
        await end(work_queue, "a")
        await end(work_queue, "b")
        newer.cancel()
        return await asyncio.gather(*playing)

    assert len(asyncio.run(main())) == 2


def test_a_request_that_comes_late_changes_nothing():
    """A worker's request from before it played, which was long on its way, takes no episode from it: no second worker
    plays what runs."""

    async def main():
        work_queue = WorkQueue()
        work_queue.admit(0, 0)
        work_queue.admit(1, 0)
        playing = asyncio.create_task(work_queue.play(assignment("a")))
        await asyncio.sleep(0)
        late, later = next(NUMBERS), next(NUMBERS)
        assert [each.assignment_id for each in (await take(work_queue, 0, number=later)).assignments] == ["a"]
        assert await take(work_queue, 0, number=late) == TakenBody()  # as it was before it had the episode
        other = asyncio.create_task(take(work_queue, 1))
        await asyncio.sleep(0)
        await end(work_queue, "a", 0)
        assert (await playing).read_ending().value == 1.0
        other.cancel()
        return work_queue

    assert "playing=0" in repr(asyncio.run(main()))


def test_the_end_of_the_run_is_told_to_who_waits():
    """A worker that waits for an episode holds up nobody: it is answered at once, and asks again later."""

    async def main():
        work_queue = WorkQueue()
        work_queue.admit(0, 0)
        body = {"index": 0, "attempt": 0, "free": 1, "has": [], "number": next(NUMBERS)}
        waiting = asyncio.create_task(work_queue.answer(Asked("take", **body), 0))
        await asyncio.sleep(0)
        work_queue.close()
        async with asyncio.timeout(5):
            return await waiting

    assert asyncio.run(main()).status_code == 503


def test_a_lost_worker_loses_its_episodes_alone():
    """What the lost one played ends as lost; what waited goes to another; its late report is not heard."""

    async def main():
        work_queue = WorkQueue()
        work_queue.admit(0, 0)
        work_queue.admit(1, 0)
        playing = {name: asyncio.create_task(work_queue.play(assignment(name))) for name in "ab"}
        await asyncio.sleep(0)
        assert (await take(work_queue, 0)).assignments[0].assignment_id == "a"
        work_queue.lose(0)
        assert await playing["a"] is None
        await end(work_queue, "a", 0)
        assert (await take(work_queue, 1)).assignments[0].assignment_id == "b"
        await end(work_queue, "b", 1)
        assert await playing["b"] is not None
        return work_queue

    assert "workers=1, slots=0, playing=0" in repr(asyncio.run(main()))


def test_what_is_no_report_is_refused():
    """A body that is not of the wire is answered with 400 and why, for asking again would not help."""

    async def main():
        return await WorkQueue().answer(Asked("end", assignment_id="a"), 0), await WorkQueue().answer(
            Asked("take", free="many"), 0
        )

    for answer in asyncio.run(main()):
        assert answer.status_code == 400 and b"index" in answer.body


def test_what_no_episode_weighs_is_refused(monkeypatch):
    """Before it is read to its end."""
    monkeypatch.setattr(work_queue_module, "MAX_REPORT_BYTES", 100)
    with pytest.raises(AgentError, match="more than 100 bytes") as refused:
        asyncio.run(WorkQueue().answer(Asked("end", value="x" * 100), 0))
    assert refused.value.status == 413


def test_what_is_called_off_ends_at_the_worker():
    """A worker is told what nobody waits for; what had not reached one is forgotten."""

    async def main():
        work_queue = WorkQueue()
        work_queue.admit(0, 0)
        playing = [asyncio.create_task(work_queue.play(assignment(name))) for name in "ab"]
        await asyncio.sleep(0)
        await take(work_queue, free=1)
        asking = asyncio.create_task(take(work_queue, free=1, has="a"))
        assert (await asking).assignments[0].assignment_id == "b"
        asking = asyncio.create_task(take(work_queue, free=0, has="ab"))
        await asyncio.sleep(0)
        for task in playing:
            task.cancel()
        assert set((await asking).cancelled) <= {"a", "b"}
        await asyncio.gather(*playing, return_exceptions=True)
        gone = asyncio.create_task(work_queue.play(assignment("c")))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        last = asyncio.create_task(work_queue.play(assignment("d")))
        await asyncio.sleep(0)
        assert [each.assignment_id for each in (await take(work_queue, free=2)).assignments] == ["d"]
        work_queue.lose(0)
        assert await last is None

    asyncio.run(main())


def test_a_worker_waits_until_it_is_admitted():
    """A worker that asks before it was admitted is answered when it is, and not before."""

    async def main():
        work_queue = WorkQueue()
        playing = asyncio.create_task(work_queue.play(assignment("a")))
        asking = asyncio.create_task(take(work_queue))
        await asyncio.sleep(0.01)
        assert not asking.done()
        work_queue.admit(0, 0)
        assert [each.assignment_id for each in (await asking).assignments] == ["a"]
        await end(work_queue, "a")
        await playing

    asyncio.run(main())


def test_places_follow_the_workers():
    """An episode's time begins when a worker has a place ready for it; one that must be made ready again is none."""

    async def main():
        work_queue = WorkQueue()
        waiting = [asyncio.create_task(work_queue.acquire_slot()) for _ in range(3)]
        work_queue.admit(0, 0)
        asking = asyncio.create_task(take(work_queue, free=0))
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in waiting)
        asking.cancel()
        asking = asyncio.create_task(take(work_queue, free=1))
        await waiting[0]
        playing = asyncio.create_task(work_queue.play(assignment("a")))
        await asking
        await end(work_queue, "a")
        await playing
        work_queue.release_slot()
        asking = asyncio.create_task(take(work_queue, free=0))
        await asyncio.sleep(0.01)
        assert not waiting[1].done()
        waiting[1].cancel()
        asking.cancel()
        asking = asyncio.create_task(take(work_queue, free=1))
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
    assert AgentName.of(Asked, None).reference.endswith("test_work_queue:Asked")
    assert AgentName.of("agent.py:Agent", {"a": 1}).reference.startswith("/")
    name = AgentName.of("pkg.mod:Agent", {"a": 1})
    assert AgentName.of_label(name.label) == name
    with pytest.raises(UserError, match="an object of this process"):
        AgentName.of(Asked("take"), None)
    with pytest.raises(UserError, match="inside a function"):
        AgentName.of(lambda data: 1.0, None)
    with pytest.raises(UserError, match="workflow_kwargs cannot be sent"):
        AgentName.of("a:b", {"x": object()})


def test_rows_travel_as_json():
    """A column that is no JSON is named."""
    with pytest.raises(UserError, match="image: "):
        assignment_body("a", "agent", {"question": "?", "image": object()}, "", "", EpisodeInfo("a", "row0", "g0"))
