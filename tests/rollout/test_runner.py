"""One episode: whatever the agent does, it ends in an Episode that says so. Agents use the real OpenAI SDK."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openai
import pytest

from ludus.episodes.reward import Result
from ludus.rollout.tasks import EpisodeTask
from ludus.types import Episode

Play = Callable[..., Episode]


async def ask(base_url: str, api_key: str, http_client: Any, text: str = "2+2?", **fields: Any) -> Any:
    client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
    return await client.chat.completions.create(model="default", messages=[{"role": "user", "content": text}], **fields)


async def one_call(data: dict[str, Any], **injected: Any) -> float:
    completion = await ask(**injected)
    return float(completion.choices[0].message.content == "four")


def test_an_agent_with_the_injected_client_is_recorded_and_rewarded(play: Play) -> None:
    """A plain agent: its turn has the tokens of the answer, and the reward."""
    episode = play(one_call)
    (turn,) = episode.session.turns
    assert episode.outcome.kind == "ok" and episode.rewards == {turn.id: 1.0}
    assert turn.reply.content == "four"
    assert (episode.id, episode.group_id, episode.task_id) == ("e1", "g1", "row0")
    assert episode.finished_at >= episode.started_at > 0


def test_the_blocking_client_completes_inside_an_inline_agent(play: Play) -> None:
    """openai.OpenAI() blocks the agents' thread, and is answered all the same."""

    async def blocking(data: dict[str, Any], base_url: str, api_key: str) -> float:
        with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
            messages: list[Any] = [{"role": "user", "content": "hi"}]
            client.chat.completions.create(model="default", messages=messages)
        return 1.0

    assert play(blocking).outcome.kind == "ok"


def test_a_raising_agent_is_a_failed_episode_with_its_traceback(play: Play) -> None:
    """The reason ends with the agent's own error, and shows the line that raised; its turns are kept."""

    async def raises(data: dict[str, Any], **injected: Any) -> float:
        await ask(**injected)
        raise ValueError("the dice fell off the table")

    episode = play(raises)
    assert episode.outcome.kind == "failed" and len(episode.session.turns) == 1
    assert episode.outcome.reason.endswith("ValueError: the dice fell off the table")
    assert "test_runner.py" in episode.outcome.reason and "ludus/rollout" not in episode.outcome.reason


def test_an_agent_that_exits_the_interpreter_only_fails_its_episode(play: Play) -> None:
    """sys.exit in an agent ends neither the thread of all agents nor the process."""

    async def exits(data: dict[str, Any]) -> float:
        sys.exit(3)

    assert "SystemExit: 3" in play(exits).outcome.reason


def test_an_agent_that_never_calls_the_model_fails(play: Play) -> None:
    """A reward without a call has nothing to reward."""

    async def idle(data: dict[str, Any]) -> float:
        return 1.0

    assert "never called the model" in play(idle).outcome.reason


def test_a_hanging_agent_times_out_and_what_it_asked_is_aborted(make_runner: Any, task: EpisodeTask) -> None:
    """After the deadline the episode is a timeout, and its tokens so far are in the record."""

    async def hangs(data: dict[str, Any], **injected: Any) -> float:
        await ask(**injected)
        await asyncio.Event().wait()
        return 1.0

    runner, _ = make_runner(hangs, episode_timeout_s=2.0)
    episode = asyncio.run(runner.run(task))
    assert episode.outcome.kind == "timeout" and "episode_timeout_s=2.0" in episode.outcome.reason
    assert len(episode.session.turns) == 1 and not episode.rewards


def test_an_agent_that_blocks_its_loop_for_ever_is_named(play: Play) -> None:
    """The timeout of an agent that blocks says where it blocks."""
    release = threading.Event()

    async def blocks(data: dict[str, Any], **injected: Any) -> float:
        await ask(**injected)
        await asyncio.sleep(0.1)
        release.wait(20)
        return 1.0

    episode = play(blocks, episode_timeout_s=3.0)
    release.set()
    assert episode.outcome.kind == "timeout"
    assert "event loop blocked" in episode.outcome.reason and "in blocks" in episode.outcome.reason


async def talks_on(data: dict[str, Any], **injected: Any) -> float:
    for _ in range(5):
        await ask(**injected)
    return 1.0


def test_a_limit_that_the_agent_does_not_catch_truncates_the_episode(play: Play) -> None:
    """Three turns are allowed: the fourth call raises in the agent, and the outcome says why."""
    episode = play(talks_on, max_turns=3)
    assert episode.outcome.kind == "truncated" and "turn_limit" in episode.outcome.reason
    assert len(episode.session.turns) == 3 and not episode.rewards


def test_an_agent_that_catches_the_limit_keeps_its_reward(play: Play) -> None:
    """A truncated episode with a reward has credit."""

    async def catches(data: dict[str, Any], **injected: Any) -> float:
        try:
            await talks_on(data, **injected)
        except openai.BadRequestError as error:
            assert error.code == "token_limit"
        return 0.25

    episode = play(catches, max_tokens=2)
    assert episode.outcome.kind == "truncated" and episode.outcome.has_credit
    assert list(episode.rewards.values()) == [0.25]


def test_a_prompt_longer_than_the_context_is_named(play: Play) -> None:
    """The agent gets context_length_exceeded, and so does the outcome."""

    async def long(data: dict[str, Any], **injected: Any) -> float:
        await ask(**injected, text="word " * 400)
        return 1.0

    episode = play(long, engine_options={"context_length": 64})
    assert episode.outcome.kind == "truncated" and "context_length_exceeded" in episode.outcome.reason


def test_an_engine_that_fails_fails_the_episode(play: Play) -> None:
    """When no answer is left the agent sees an internal server error, and the episode is failed."""
    episode = play(talks_on, ["four"])
    assert episode.outcome.kind == "failed" and "InternalServerError" in episode.outcome.reason
    assert len(episode.session.turns) == 1


def test_cancelling_keeps_the_episode_as_cancelled(make_runner: Any, task: EpisodeTask) -> None:
    """An episode that is stopped from outside is still an episode, with every token sampled for it."""
    has_called = threading.Event()

    async def waits(data: dict[str, Any], **injected: Any) -> float:
        await ask(**injected)
        has_called.set()
        await asyncio.Event().wait()
        return 1.0

    async def main() -> Episode:
        runner, _ = make_runner(waits)
        playing = asyncio.ensure_future(runner.run(task))
        await asyncio.to_thread(has_called.wait, 10)
        playing.cancel()
        return await playing

    episode = asyncio.run(main())
    assert episode.outcome.kind == "cancelled" and len(episode.session.turns) == 1


def test_training_pins_the_distribution_and_evaluation_does_not(make_runner: Any, task: EpisodeTask) -> None:
    """While training, what `pinned` names stays the run's; an evaluation and a run that pins nothing obey the agent."""

    async def narrow(data: dict[str, Any], **injected: Any) -> float:
        await ask(**injected, top_p=0.5, temperature=0.5)
        return 1.0

    runner, engine = make_runner(narrow)
    for is_eval in (False, True):
        asyncio.run(runner.run(replace(task, is_eval=is_eval)))
    assert [call.sampling.top_p for call in engine.calls] == [1.0, 0.5]
    assert [call.sampling.temperature for call in engine.calls] == [0.5, 0.5]
    assert [call.sampling.max_new_tokens for call in engine.calls] == [32, 32]
    for pinned in ((), ("temperature",)):
        runner, engine = make_runner(narrow, pinned=pinned)
        asyncio.run(runner.run(task))
        (call,) = engine.calls
        assert call.sampling.top_p == 0.5 and (call.sampling.temperature == 0.5) == (pinned == ())


def test_equal_tasks_draw_equal_seeds(make_runner: Any, task: EpisodeTask) -> None:
    """The seed of each call comes from the task, so an episode can be played again."""
    runner, engine = make_runner(one_call)
    for _ in range(2):
        asyncio.run(runner.run(task))
    first, second = engine.calls
    assert first.sampling.seed == second.sampling.seed is not None


def test_results_carry_metrics_into_the_episode(play: Play) -> None:
    """What Result says is in the episode."""

    async def reports(data: dict[str, Any], **injected: Any) -> Result:
        await ask(**injected)
        return Result(1, {"success": True}, {"board": [1, 2]})

    episode = play(reports)
    assert episode.metrics == {"success": 1.0} and episode.metadata == {"board": [1, 2]}


@pytest.mark.parametrize(("value", "word"), [(float("nan"), "nan"), ("high", "'high'"), ({"x": 1}, "'x'")])
def test_impossible_rewards_fail_by_name(play: Play, value: object, word: str) -> None:
    """NaN, wrong types and unknown completion ids are in the reason."""

    async def returns(data: dict[str, Any], **injected: Any) -> object:
        await ask(**injected)
        return value

    episode = play(returns)
    assert episode.outcome.kind == "failed" and word in episode.outcome.reason


def test_one_question_asked_three_times_is_rewarded_once(play: Play) -> None:
    """Each answer is credited with the number; the reward of the episode is the number itself."""

    async def asks_again(data: dict[str, Any], **injected: Any) -> float:
        for _ in range(3):
            await ask(**injected)
        return 0.5

    episode = play(asks_again)
    assert list(episode.rewards.values()) == [0.5, 0.5, 0.5] and episode.reward == 0.5


def test_an_agent_that_closes_its_client_closes_no_other(make_runner: Any, task: EpisodeTask) -> None:
    """Each episode has a client of its own, which is closed when it has ended."""
    clients: list[Any] = []

    async def closes(data: dict[str, Any], base_url: str, api_key: str, http_client: Any) -> float:
        clients.append(http_client)
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client) as client:
            messages: list[Any] = [{"role": "user", "content": "2+2?"}]
            await client.chat.completions.create(model="default", messages=messages)
        return 1.0

    async def keeps(data: dict[str, Any], **injected: Any) -> float:
        clients.append(injected["http_client"])
        return await one_call(data, **injected)

    for agent in (closes, keeps):
        runner, _ = make_runner(agent)
        assert [asyncio.run(runner.run(task)).outcome.kind for _ in range(2)] == ["ok", "ok"]
    asyncio.run(runner.run(task))  # what closes a client runs on the agents' thread before a later agent does
    assert all(client.is_closed for client in clients[:-1])
