"""An episode that a killed process had begun: its answers are given again for as long as its agent asks the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.recall import Recall
from ludus.rollout.runner import EpisodeRunner
from ludus.rollout.tasks import EpisodeTask
from ludus.types import Call, Episode, SessionRecord

MakeRunner = Callable[..., tuple[EpisodeRunner, ScriptedEngine]]


def asks(*questions: str) -> Any:
    """An agent that asks one thing after the other."""

    async def agent(data: dict[str, Any], *, base_url: str, http_client: Any) -> float:
        messages: list[dict[str, str]] = []
        for question in questions:
            messages.append({"role": "user", "content": question})
            answer = (await http_client.post(base_url + "/chat/completions", json={"messages": messages})).json()
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        return 1.0

    return agent


def seeded(call: Call) -> str:
    """Another answer for every seed and prompt."""
    return f"{call.sampling.seed} after {len(call.prompt_ids)}"


def played(
    make_runner: MakeRunner, task: EpisodeTask, agent: Any, recall: Recall | None = None
) -> tuple[Episode, list[Call]]:
    runner, engine = make_runner(agent, seeded)
    runner._recall = lambda _: recall

    async def play() -> Episode:
        async with runner:
            return await runner.run(task)

    return asyncio.run(play()), list(engine.calls)


def test_answers_are_given_again_until_the_agent_asks_otherwise(make_runner: MakeRunner, task: EpisodeTask) -> None:
    """Token for token, with their logprobs and versions; from the first difference on the engine is asked, with the
    seeds that it would have been asked with."""
    before, calls = played(make_runner, task, asks("2+2?", "And why?", "Sure?"))
    assert len(calls) == 3
    broken_off = SessionRecord(before.session.id, before.session.nodes, before.session.turns[:2])
    same, asked = played(make_runner, task, asks("2+2?", "And why?", "Sure?"), Recall(broken_off, newest=0))
    assert [turn.sampled for turn in same.session.turns] == [turn.sampled for turn in before.session.turns]
    assert [call.prompt_ids for call in asked] == [calls[2].prompt_ids]
    other, asked = played(make_runner, task, asks("2+2?", "But why?", "Sure?"), Recall(broken_off, newest=0))
    assert other.session.turns[0].sampled == before.session.turns[0].sampled and len(asked) == 2
    assert other.outcome.kind == "ok" and other.reward == 1.0


def test_what_was_broken_off_or_sampled_by_lost_weights_is_sampled_anew(
    make_runner: MakeRunner, task: EpisodeTask
) -> None:
    """A part of an answer is no answer; and steps after the checkpoint are trained again, perhaps to other weights."""
    before, _ = played(make_runner, task, asks("2+2?", "And why?"))
    first, second = before.session.turns
    aborted = replace(first, sampled=replace(first.sampled, stop_reason="abort"))
    later = replace(second, sampled=replace(second.sampled, versions=tuple(1 for _ in second.sampled.versions)))
    record = replace(before.session, turns=(aborted, later))
    again, asked = played(make_runner, task, asks("2+2?", "And why?"), Recall(record, newest=0))
    assert len(asked) == 2 and len(again.session.turns) == 2
    _, asked = played(make_runner, task, asks("2+2?", "And why?"), Recall(record, newest=1))
    assert len(asked) == 1


def test_an_answer_is_given_once(make_runner: MakeRunner, task: EpisodeTask) -> None:
    """Two equal requests are two samples: the second has another seed, and its own answer."""
    record = played(make_runner, task, asks("2+2?"))[0].session
    recall = Recall(record, newest=0)

    async def twice(data: dict[str, Any], *, base_url: str, http_client: Any) -> float:
        for _ in range(2):
            body = {"messages": [{"role": "user", "content": "2+2?"}]}
            await http_client.post(base_url + "/chat/completions", json=body)
        return 1.0

    episode, asked = played(make_runner, task, twice, recall)
    assert len(asked) == 1 and recall.num_given == 1
    one, two = episode.session.turns
    assert one.sampled == record.turns[0].sampled and one.sampled.seed != two.sampled.seed
