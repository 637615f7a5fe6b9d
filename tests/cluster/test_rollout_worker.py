"""A worker and its head over the real wire; the agents' door is written here, so that no process starts."""

import asyncio
import math
from contextlib import asynccontextmanager, contextmanager

import pytest
from starlette.responses import Response

from ludus.agents.adapter import About
from ludus.cluster.member import Member
from ludus.cluster.registry import Registry
from ludus.episodes.outcome import Raised, Returned
from ludus.episodes.reward import Result
from ludus.rollout.handout import SERVICE, Handout
from ludus.rollout.remote import AgentName
from ludus.rollout.wire import ReportBody, seat_body
from ludus.rollout.worker import RolloutWorker

LABEL = AgentName("agent:Agent", {}).label
HALF = "\ud83d"  # half of a surrogate pair, as json.loads makes it of what a model wrote


class WrittenDoor:
    """Plays what a function says."""

    name = "written"

    def __init__(self, play):
        self._play = play

    @asynccontextmanager
    async def lease(self):
        yield object()

    async def make_ready(self, lease): ...

    @contextmanager
    def placed(self, episode_id, lease):
        yield

    async def play(self, data, context):
        return self._play(data, context)


def seat(name, **row):
    return seat_body(name, LABEL, row, "http://here/v1", "key", About(name, "row0", "g0"))


def at_a_worker(play, drive, wrap=lambda handout: handout.answer, make_door=WrittenDoor, capacity=2):
    """What `drive(handout)` returns, while a worker plays by `play(data, context)`."""

    async def main():
        handout = Handout()
        with Registry("") as registry:
            registry.serve(SERVICE, wrap(handout))
            registry.expect("rollout", 0, 0, {})
            with Member(registry.url, registry.key, "rollout", 0) as member:
                worker = RolloutWorker(member, capacity, lambda name, pool: make_door(play))
                working = asyncio.create_task(worker.work([LABEL]))
                await registry.wait("rollout", 0)
                handout.admit(0, 0)
                driving = asyncio.create_task(drive(handout))
                async with asyncio.timeout(20):
                    await asyncio.wait((driving, working), return_when=asyncio.FIRST_COMPLETED)
                    assert not working.done(), working
                    found = await driving
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
                # What the worker asked last is answered, so that the registry need not wait for it.
                last = asyncio.create_task(handout.play(seat("last")))
                await asyncio.sleep(0.02)
                last.cancel()
                return found

    return asyncio.run(main())


def ending_of(play, **row):
    """How an episode ended of which a worker played `play`; another one plays well after it."""

    async def drive(handout):
        report = await handout.play(seat("odd", **row))
        assert (await handout.play(seat("next"))) is not None
        return report

    return at_a_worker(lambda data, context: play(data, context) if data else 1.0, drive)


def test_odd_values_of_a_row_arrive():
    """NaN, infinities and halves of surrogate pairs reach the agent as they are in the row."""
    seen = []

    def play(data, context):
        seen.append(data)
        return 1.0

    report = ending_of(play, text=HALF, numbers=[math.nan, math.inf])
    assert report.read_ending() == Returned(1.0)
    assert seen[0]["text"] == HALF
    assert math.isnan(seen[0]["numbers"][0]) and seen[0]["numbers"][1] == math.inf


@pytest.mark.parametrize("value", [HALF, -math.inf, Result(1.0, {"size": math.inf}, {"said": HALF})])
def test_odd_values_that_are_returned_arrive(value):
    """Whatever floats and texts an agent returns are judged by the head, as those of an agent that plays there."""
    assert ending_of(lambda data, context: value, odd=True).read_ending() == Returned(value)


def test_odd_numbers_arrive():
    """A number that an agent counted may be NaN."""

    def play(data, context):
        context.numbers["loss"] = [math.nan]
        return math.nan

    report = ending_of(play, odd=True)
    assert math.isnan(report.numbers["loss"][0]) and math.isnan(report.read_ending().value)


def test_odd_words_of_an_error_arrive():
    """An error that quotes half a surrogate pair is its episode's, in a text that can be stored and shown."""

    def play(data, context):
        raise ValueError(f"cannot parse {HALF}")

    ending = ending_of(play, odd=True).read_ending()
    assert isinstance(ending, Raised) and ending.trace.endswith(r"cannot parse \ud83d")
    ending.codes.encode()


def test_a_place_is_offered_once_it_is_ready():
    """The head waits for a worker's process, before the first episode and after each that used it up."""
    ready = asyncio.Event()

    class SlowDoor(WrittenDoor):
        async def make_ready(self, lease):
            await ready.wait()

        async def play(self, data, context):
            ready.clear()
            return 1.0

    async def drive(handout):
        for name in ("first", "second"):
            placed = asyncio.create_task(handout.wait_place())
            await asyncio.sleep(0.05)
            assert not placed.done()
            ready.set()
            await placed
            assert await handout.play(seat(name)) is not None
            handout.leave_place()

    at_a_worker(None, drive, make_door=SlowDoor, capacity=1)


class Unshown:
    def __repr__(self):
        raise RuntimeError(f"not shown {HALF}")


def test_what_cannot_travel_fails_its_episode_alone():
    """A value that cannot even be shown fails its episode with the words of why, and the worker plays on."""
    ending = ending_of(lambda data, context: Result(1.0, metadata={"it": Unshown()}), odd=True).read_ending()
    assert (
        isinstance(ending, Raised) and r"cannot be told to the head: RuntimeError('not shown \ud83d')" in ending.trace
    )


def test_a_report_that_is_refused_becomes_one_that_says_so():
    """The head's refusal ends the episode with its words; the refused report is not sent again."""
    num_refused = 0

    def wrap(handout):
        async def answer(request):
            nonlocal num_refused
            if request.path_params["rest"] == "end" and ReportBody.of_json(await request.body()).value == "refuse me":
                num_refused += 1
                return Response("this value is not taken", status_code=400)
            return await handout.answer(request)

        return answer

    async def drive(handout):
        return await handout.play(seat("odd", odd=True))

    ending = at_a_worker(lambda data, context: "refuse me", drive, wrap).read_ending()
    assert num_refused == 1
    assert isinstance(ending, Raised) and "400 this value is not taken" in ending.trace
