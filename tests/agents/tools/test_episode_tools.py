"""An episode's tools: what a call gives, how tools live in a trajectory, and what becomes of those that misbehave."""

from __future__ import annotations

import asyncio
import json
import logging
from itertools import pairwise
from typing import Any

import pytest

from ludus.agents.tools.answer import ToolError, ToolLimits
from ludus.agents.tools.base import BaseTool, ToolResponse
from ludus.agents.tools.function import FunctionTool, function_tool
from ludus.agents.tools.source import OneTool, ToolPlan
from ludus.agents.tools.tool_set import ToolSet
from ludus.errors import UserError
from ludus.runs.spans import SpanLog, collect_spans
from ludus.types import ToolCall

pytestmark = pytest.mark.anyio

SCHEMA = {
    "type": "function",
    "function": {
        "name": "count",
        "description": "Counts up.",
        "parameters": {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]},
    },
}


class Counter(BaseTool):
    """Keeps a number for each trajectory, and writes down what happens to it."""

    def __init__(self) -> None:
        super().__init__({}, SCHEMA)
        self.log: list[str] = []
        self.numbers: dict[str, int] = {}

    async def create(self, instance_id: str | None = None, start: int = 0, **kwargs: Any) -> tuple[str, ToolResponse]:
        assert instance_id is not None
        self.log.append(f"create {sorted(kwargs)}")
        self.numbers[instance_id] = start
        return instance_id, ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        self.log.append("execute")
        self.numbers[instance_id] += parameters["by"]
        number = self.numbers[instance_id]
        return ToolResponse(text=str(number)), 0.5 * number, {"number": number, "note": "not a number"}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        self.log.append("calc_reward")
        return float(self.numbers[instance_id])

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        self.log.append("release")
        del self.numbers[instance_id]


class OneAtATime(BaseTool):
    """Of three calls at once two wait."""

    max_concurrent = 1

    def __init__(self) -> None:
        function = {"name": "alone", "description": "", "parameters": {"type": "object", "properties": {}}}
        super().__init__({}, {"type": "function", "function": function})

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return "done"


async def tool_set_of(*tools: Any, limits: ToolLimits | None = None) -> ToolSet:
    tool_set = ToolSet.load(tools=tools, limits=limits)
    await tool_set.setup()
    return tool_set


def call(name: str, /, **arguments: Any) -> ToolCall:
    return ToolCall("call_1", name, json.dumps(arguments))


async def test_a_tool_lives_as_long_as_its_trajectory() -> None:
    """It is created at its first call, keeps its state, and is rewarded and released once, at the end."""
    counter = Counter()
    tool_set = await tool_set_of(counter)
    async with tool_set.open({"count": {"create_kwargs": {"start": 10}}}) as episode_tools:
        assert [spec.name for spec in episode_tools.specs] == ["count"]
        assert counter.log == []
        first, second = await episode_tools.call(call("count", by=1)), await episode_tools.call(call("count", by=2))
    assert (first.text, first.reward, second.text, second.reward) == ("11", 5.5, "13", 6.5)
    assert counter.log == ["create ['create_kwargs']", "execute", "execute", "calc_reward", "release"]
    assert (episode_tools.rewards, episode_tools.call_rewards, counter.numbers) == ({"count": 13.0}, (5.5, 6.5), {})
    metrics = episode_tools.metrics
    assert (metrics["tools/num_calls"], metrics["tools/num_errors"], metrics["tools/count/number"]) == (2, 0, 12)
    assert "tools/count/note" not in metrics


async def test_a_tool_that_is_not_called_is_never_created() -> None:
    """Nothing is created, rewarded or released for it."""
    counter = Counter()
    async with (await tool_set_of(counter)).open() as episode_tools:
        pass
    assert (counter.log, episode_tools.rewards) == ([], {})


async def test_trajectories_do_not_share_instances() -> None:
    """Two episodes' tools of one set each have a number of their own."""
    tool_set = await tool_set_of(Counter())
    async with tool_set.open() as one, tool_set.open() as other:
        texts = [
            (await episode_tools.call(call("count", by=by))).text
            for episode_tools, by in ((one, 1), (other, 5), (one, 1))
        ]
    assert texts == ["1", "5", "2"]


async def test_calls_at_once_create_the_tool_once() -> None:
    """Parallel first calls wait for the one `create`."""
    counter = Counter()
    async with (await tool_set_of(counter)).open() as episode_tools:
        results = await asyncio.gather(*(episode_tools.call(call("count", by=1)) for _ in range(4)))
    assert sorted(result.text for result in results) == ["1", "2", "3", "4"]
    assert counter.log[0].startswith("create") and counter.log.count("execute") == 4


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ('{"by": 1', "Failed to decode tool call: Invalid JSON in the arguments of 'count'"),
        ("[1]", "must be a JSON object, got [1]"),
        ("{}", "needs the argument 'by'; got: none"),
    ],
)
async def test_wrong_arguments_are_told_to_the_model(arguments: str, error: str) -> None:
    """What the model wrote wrongly is the text of the result, and the tool is not called."""
    counter = Counter()
    async with (await tool_set_of(counter)).open() as episode_tools:
        result = await episode_tools.call(ToolCall("1", "count", arguments))
    assert result.error is not None and error in result.error
    assert result.text == f"Error: {result.error}"
    assert counter.log == []


async def test_an_unknown_tool_is_told_with_the_nearest() -> None:
    """The model learns what there is."""
    async with (await tool_set_of(Counter())).open() as episode_tools:
        result = await episode_tools.call(call("counts", by=1))
    assert result.error == "Unknown function 'counts'; did you mean 'count'? Available tools: count"
    assert episode_tools.metrics["tools/num_errors"] == 1


async def test_text_that_is_no_call_is_an_observation(caplog: pytest.LogCaptureFixture) -> None:
    """The model reads that its call could not be decoded, and the trace holds it."""
    spans = SpanLog()
    with collect_spans(spans):
        async with (await tool_set_of(Counter())).open() as episode_tools:
            result = episode_tools.undecoded("<tool_call>{oops</tool_call>")
    assert result.text.startswith("Error: Failed to decode tool call: <tool_call>{oops")
    (kept,) = spans.snapshot()
    assert (kept.kind, kept.name, kept.error) == ("tool", "undecoded", result.error)


async def test_an_error_of_a_tool_is_shown_to_the_model_and_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """The second failure of the same kind is not worth a second warning."""

    async def broken() -> str:
        raise ZeroDivisionError("by zero")

    tool_set = await tool_set_of(broken)
    async with tool_set.open() as episode_tools:
        results = [await episode_tools.call(call("broken")) for _ in range(2)]
    assert [result.error for result in results] == ["the tool 'broken' failed: ZeroDivisionError: by zero"] * 2
    assert [record.levelno for record in caplog.records if "'broken' failed" in record.getMessage()] == [
        logging.WARNING
    ]


async def test_a_tool_error_is_for_the_model_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A tool that says in words what was wrong with a call is not broken."""

    async def picky() -> str:
        raise ToolError("only on Sundays")

    async with (await tool_set_of(picky)).open() as episode_tools:
        assert (await episode_tools.call(call("picky"))).text == "Error: only on Sundays"
    assert not caplog.records


async def test_a_tool_that_leaves_the_interpreter_leaves_nothing() -> None:
    """sys.exit in a tool is an error of that tool."""

    async def leaving() -> str:
        raise SystemExit(3)

    async with (await tool_set_of(leaving)).open() as episode_tools:
        assert "it called sys.exit(3)" in (await episode_tools.call(call("leaving"))).text


async def test_a_tool_that_cancels_itself_is_an_error_of_that_tool() -> None:
    """The agent that called it is not cancelled with it."""

    async def confused() -> str:
        raise asyncio.CancelledError

    async with (await tool_set_of(confused)).open() as episode_tools:
        assert "cancelled itself" in (await episode_tools.call(call("confused"))).text


@pytest.mark.parametrize("is_deaf", [False, True])
async def test_a_tool_that_never_returns_is_given_up(is_deaf: bool) -> None:
    """Its call ends at the deadline even if it will not be cancelled, and other calls go on meanwhile."""
    heard, stop = asyncio.Event(), asyncio.Event()

    async def endless() -> str:
        try:
            await stop.wait()
        except asyncio.CancelledError:
            heard.set()
            if not is_deaf:
                raise
            await stop.wait()
        return "late"

    async def quick() -> str:
        return "here"

    tool_set = await tool_set_of(endless, quick, limits=ToolLimits(timeout_s=0.05))
    async with tool_set.open() as episode_tools:
        slow, fast = await asyncio.gather(episode_tools.call(call("endless")), episode_tools.call(call("quick")))
    assert slow.error == "the tool 'endless' did not answer within 0.05 s"
    assert fast.text == "here"
    await heard.wait()
    stop.set()


async def test_the_deadline_of_a_tool_goes_before_that_of_the_run() -> None:
    """A plan may give its tool more or less time."""

    async def slow() -> str:
        await asyncio.Event().wait()
        return ""

    tool_set = await tool_set_of(ToolPlan(OneTool(FunctionTool(slow)), timeout_s=0.02))
    async with tool_set.open() as episode_tools:
        assert "within 0.02 s" in (await episode_tools.call(call("slow"))).text


async def test_no_more_calls_run_at_a_time_than_the_plan_says() -> None:
    """Calls of all trajectories queue for the tool's slots."""
    running, most = 0, 0

    async def busy() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return ""

    tool_set = await tool_set_of(ToolPlan(OneTool(FunctionTool(busy)), max_concurrent=2))
    async with tool_set.open() as one, tool_set.open() as other:
        await asyncio.gather(*(episode_tools.call(call("busy")) for episode_tools in (one, other) for _ in range(4)))
    assert most == 2


async def test_a_failed_trajectory_releases_without_reward() -> None:
    """Whatever ends the block, `release` runs; `calc_reward` only where there is something to reward."""
    counter = Counter()
    with pytest.raises(RuntimeError, match="the agent failed"):
        async with (await tool_set_of(counter)).open() as episode_tools:
            await episode_tools.call(call("count", by=1))
            raise RuntimeError("the agent failed")
    assert counter.log[-2:] == ["execute", "release"]


async def test_a_reward_that_fails_fails_the_trajectory_after_all_are_released() -> None:
    """A reward that is missing is never taken for none."""

    class Broken(Counter):
        async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
            return float("nan")

    counter = Broken()
    tool_set = await tool_set_of(counter)
    with pytest.raises(UserError, match=r"calc_reward of the tool 'count' failed: ToolError: the reward .* got nan"):
        async with tool_set.open() as episode_tools:
            await episode_tools.call(call("count", by=1))
    assert counter.log[-1] == "release"


async def test_a_release_that_fails_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """What the trajectory earned is known by then."""

    class Sticky(Counter):
        async def release(self, instance_id: str, **kwargs: Any) -> None:
            raise OSError("stuck")

    async with (await tool_set_of(Sticky())).open() as episode_tools:
        await episode_tools.call(call("count", by=1))
    assert episode_tools.rewards == {"count": 1.0}
    assert "the tool 'count' failed" in caplog.text


async def test_closed_tools_call_nothing() -> None:
    """A call after the end is the caller's mistake."""
    tool_set = await tool_set_of(Counter())
    async with tool_set.open() as episode_tools:
        pass
    with pytest.raises(UserError, match="outside of its toolbox"):
        await episode_tools.call(call("count", by=1))


async def test_calls_are_spans_of_the_episode() -> None:
    """Each call is kept with what went in, what came out and what was wrong."""
    spans = SpanLog()
    with collect_spans(spans):
        async with (await tool_set_of(Counter())).open() as episode_tools:
            await episode_tools.call(call("count", by=4), turn_id="t1")
            await episode_tools.call(call("count"))
    good, bad = spans.snapshot()
    assert (good.kind, good.name, good.inputs, good.outputs, good.error) == ("tool", "count", '{"by": 4}', "4", None)
    assert (good.turn_id, bad.turn_id) == ("t1", None)
    assert bad.error == "the tool 'count' needs the argument 'by'; got: none"


async def test_a_row_selects_tools_and_gives_them_arguments() -> None:
    """The tools keep the set's order; what a table fills in for other rows is no argument."""

    @function_tool
    async def plus(a: int) -> int:
        return a + 1

    tool_set = await tool_set_of(Counter(), plus)
    episode_tools = tool_set.open({"plus": None, "count": {"create_kwargs": None}}, ["plus", "count"])
    assert [spec.name for spec in episode_tools.specs] == ["count", "plus"]
    assert [spec.name for spec in tool_set.open(selection=["plus"]).specs] == ["plus"]


@pytest.mark.parametrize(
    ("kwargs", "selection", "error"),
    [
        ({}, ["cuont"], "the row selects the tool 'cuont'; did you mean 'count'"),
        ({"cuont": {}}, None, "the row gives arguments to the tool 'cuont'; did you mean 'count'"),
        ({"count": {"create": {}}}, None, "unknown key 'create'; did you mean 'create_kwargs'"),
        ({"count": {"create_kwargs": 3}}, None, "create_kwargs of 'count' must be a mapping, got 3"),
        ({"count": 3}, None, "tools_kwargs of 'count' must be a mapping"),
        ({"plus": {"execute_kwargs": {"x": 1}}}, None, "gives 'x' to execute of the tool 'plus', which takes nothing"),
    ],
)
async def test_what_a_row_asks_for_must_exist(kwargs: Any, selection: Any, error: str) -> None:
    """A row that names what there is not fails by name, before anything is played."""

    @function_tool
    async def plus(a: int) -> int:
        return a + 1

    tool_set = await tool_set_of(Counter(), plus)
    with pytest.raises(UserError) as raised:
        tool_set.open(kwargs, selection)
    assert error in str(raised.value)


async def test_agent_data_reaches_tools_that_take_it() -> None:
    """The trajectory's own data, as verl's loop passes it."""

    class Reader(Counter):
        async def execute(self, instance_id: str, parameters: dict[str, Any], *, agent_data: Any, lang: str) -> str:
            return f"{agent_data['who']} {lang}"

    tool_set = await tool_set_of(Reader())
    async with tool_set.open({"count": {"execute_kwargs": {"lang": "en"}}}, agent_data={"who": "me"}) as episode_tools:
        assert (await episode_tools.call(call("count", by=1))).text == "me en"


async def test_a_trajectory_may_have_tools_of_its_own() -> None:
    """Beside those that its row selects, called and closed as they are."""

    @function_tool
    async def plus(a: int) -> int:
        return a + 1

    tool_set, own = await tool_set_of(plus), Counter()
    async with tool_set.open({"count": {"create_kwargs": {"start": 4}}}, [], own=[own]) as episode_tools:
        assert [spec.name for spec in episode_tools.specs] == ["count"] and tool_set.tools[0].name == "plus"
        assert (await episode_tools.call(call("count", by=1))).text == "5"
    assert own.numbers == {}, "it was released"


async def test_what_a_call_waited_is_not_its_time() -> None:
    """A span begins where the one before it has ended, and the metrics tell waiting from working."""
    log = SpanLog()
    with collect_spans(log):
        async with (await tool_set_of(OneAtATime())).open() as episode_tools:
            await asyncio.gather(*(episode_tools.call(call("alone")) for _ in range(3)))
    spans = sorted(log.snapshot(), key=lambda each: each.started_at)
    assert len(spans) == 3
    assert all(before.finished_at <= after.started_at for before, after in pairwise(spans))
    assert episode_tools.metrics["tools/wait_s"] > 0
