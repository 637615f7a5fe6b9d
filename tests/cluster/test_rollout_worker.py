"""A worker and its head over the real wire; the agent adapter is written here, so that no process starts."""

import asyncio
import math
from contextlib import asynccontextmanager, contextmanager

import pytest
from starlette.responses import Response

from ludus.agents.adapter import EpisodeInfo
from ludus.cluster.registry import Registry
from ludus.cluster.role_client import RoleClient
from ludus.episodes.outcome import Raised, Returned
from ludus.episodes.reward import Result
from ludus.rollout.remote import AgentName
from ludus.rollout.wire import ReportBody, assignment_body
from ludus.rollout.work_queue import SERVICE, WorkQueue
from ludus.rollout.worker import RolloutWorker

LABEL = AgentName("agent:Agent", {}).label
HALF = "\ud83d"  # half of a surrogate pair, as json.loads makes it of what a model wrote


class ScriptedAdapter:
    """Runs a function."""

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


def assignment(name, **row):
    return assignment_body(name, LABEL, row, "http://here/v1", "key", EpisodeInfo(name, "row0", "g0"))


def at_a_worker(play, drive, wrap=lambda work_queue: work_queue.answer, make_agent_adapter=ScriptedAdapter, capacity=2):
    """What `drive(work_queue)` returns, while a worker plays by `play(data, context)`."""

    async def main():
        work_queue = WorkQueue()
        with Registry("") as registry:
            registry.serve(SERVICE, wrap(work_queue))
            key = registry.expect("rollout", 0, 0, {})
            with RoleClient(registry.url, key, "rollout", 0) as role_client:
                worker = RolloutWorker(role_client, capacity, lambda name, pool: make_agent_adapter(play))
                working = asyncio.create_task(worker.work([LABEL]))
                await registry.wait("rollout", 0)
                work_queue.admit(0, 0)
                driving = asyncio.create_task(drive(work_queue))
                async with asyncio.timeout(20):
                    await asyncio.wait((driving, working), return_when=asyncio.FIRST_COMPLETED)
                    assert not working.done(), working
                    found = await driving
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
                # What the worker asked last is answered, so that the registry need not wait for it.
                last = asyncio.create_task(work_queue.play(assignment("last")))
                await asyncio.sleep(0.02)
                last.cancel()
                return found

    return asyncio.run(main())


def ending_of(play, **row):
    """How an episode ended of which a worker played `play`; another one plays well after it."""

    async def drive(work_queue):
        report = await work_queue.play(assignment("odd", **row))
        assert (await work_queue.play(assignment("next"))) is not None
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
        context.agent_metrics["loss"] = [math.nan]
        return math.nan

    report = ending_of(play, odd=True)
    assert math.isnan(report.agent_metrics["loss"][0]) and math.isnan(report.read_ending().value)


def test_odd_words_of_an_error_arrive():
    """An error that quotes half a surrogate pair is its episode's, in a text that can be stored and shown."""

    def play(data, context):
        raise ValueError(f"cannot parse {HALF}")

    ending = ending_of(play, odd=True).read_ending()
    assert isinstance(ending, Raised) and ending.trace.endswith(r"cannot parse \ud83d")
    ending.codes.encode()


def test_a_slot_is_offered_once_it_is_ready():
    """The head waits for a worker's process, before the first episode and after each that used it up."""
    ready = asyncio.Event()

    class SlowAdapter(ScriptedAdapter):
        async def make_ready(self, lease):
            await ready.wait()

        async def play(self, data, context):
            ready.clear()
            return 1.0

    async def drive(work_queue):
        for name in ("first", "second"):
            placed = asyncio.create_task(work_queue.acquire_slot())
            await asyncio.sleep(0.05)
            assert not placed.done()
            ready.set()
            await placed
            assert await work_queue.play(assignment(name)) is not None
            work_queue.release_slot()

    at_a_worker(None, drive, make_agent_adapter=SlowAdapter, capacity=1)


class Unshown:
    def __repr__(self):
        raise RuntimeError(f"not shown {HALF}")


def test_what_cannot_travel_fails_its_episode_alone():
    """A value that cannot even be shown fails its episode with the reason, and the worker goes on."""
    ending = ending_of(lambda data, context: Result(1.0, metadata={"it": Unshown()}), odd=True).read_ending()
    assert (
        isinstance(ending, Raised) and r"cannot be sent to the head: RuntimeError('not shown \ud83d')" in ending.trace
    )


def test_a_report_that_is_refused_becomes_one_that_says_so():
    """The head's refusal ends the episode with its message; the refused report is not sent again."""
    num_refused = 0

    def wrap(work_queue):
        async def answer(request, index):
            nonlocal num_refused
            if request.path_params["rest"] == "end" and ReportBody.of_json(await request.body()).value == "refuse me":
                num_refused += 1
                return Response("this value is not taken", status_code=400)
            return await work_queue.answer(request, index)

        return answer

    async def drive(work_queue):
        return await work_queue.play(assignment("odd", odd=True))

    ending = at_a_worker(lambda data, context: "refuse me", drive, wrap).read_ending()
    assert num_refused == 1
    assert isinstance(ending, Raised) and "400 this value is not taken" in ending.trace
