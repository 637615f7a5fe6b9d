"""Models that play a part in an episode and are never trained: who is asked, what is kept, what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import ludus
from ludus.agents.actors import check_actors, find_actor
from ludus.agents.http_clients import SharedClients
from ludus.agents.settings import ActorSettings
from ludus.errors import UserError
from ludus.rollout.runner import EpisodeRunner
from ludus.rollout.subproc import SubprocessAgentAdapter
from ludus.rollout.tasks import EpisodeTask
from ludus.types import Episode
from tests.rewards.conftest import Endpoint, completion, endpoint  # noqa: F401

KEY = "LUDUS_TEST_ACTOR_KEY"


class Guided:
    """Asks a simulated user what to ask, and the model under training the user's question."""

    async def run(self, data: Mapping[str, Any], **extra: Any) -> float:
        user = ludus.actor("user_simulator")
        opening = [{"role": "system", "content": "You are a customer."}]
        said = await user.ask(opening, temperature=0.0)
        body = {"messages": [{"role": "user", "content": said.text}]}
        answer = (await extra["http_client"].post(extra["base_url"] + "/chat/completions", json=body)).json()
        reply = answer["choices"][0]["message"]["content"]
        judged = await user.ask(
            [*opening, {"role": "assistant", "content": said.text}, {"role": "user", "content": reply}]
        )
        return float(judged.text)


@pytest.fixture
def actors(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> dict[str, ActorSettings]:  # noqa: F811
    monkeypatch.setenv(KEY, "secret")
    endpoint.answers = [completion("What is 2+2?"), completion("0.75")]
    settings = ActorSettings(
        model="org/frozen",
        base_url=endpoint.base_url,
        api_key_env=KEY,
        parameters={"temperature": 0.7, "max_tokens": 9},
    )
    return {"user_simulator": settings}


def check(episode: Episode, endpoint: Endpoint) -> None:  # noqa: F811
    """The episode has one turn of the model and two answers of the actor, which are none."""
    assert (episode.outcome.kind, episode.outcome.reason, episode.reward) == ("ok", "", 0.75)
    (turn,) = episode.session.turns
    assert turn.messages[-1].content == "What is 2+2?" and turn.reply.content == "four"
    assert episode.session.num_sampled_tokens == len(turn.sampled.token_ids)
    first, second = (span for span in episode.spans if span.kind == "actor")
    assert (first.name, first.inputs["model"], first.inputs["temperature"]) == ("user_simulator", "org/frozen", 0.0)
    assert first.inputs["messages"] == [{"role": "system", "content": "You are a customer."}]
    assert first.outputs == {"role": "assistant", "content": "What is 2+2?"}
    assert first.metrics == {"prompt_tokens": 100, "completion_tokens": 10}
    assert second.inputs["temperature"] == 0.7 and second.inputs["messages"][-1]["content"] == "four"
    assert endpoint.keys == ["Bearer secret"] * 2 and endpoint.bodies[0]["max_tokens"] == 9


def test_an_actor_speaks_and_is_recorded_beside_the_turns(
    play: Callable[..., Episode],
    actors: dict[str, ActorSettings],
    endpoint: Endpoint,  # noqa: F811
) -> None:
    """What an actor says is a span with what it was asked; the turns and their tokens are the model's alone."""
    check(play(Guided(), actors=actors), endpoint)


def test_agents_with_a_process_ask_from_there(
    make_runner: Callable[..., tuple[EpisodeRunner, Any]],
    task: EpisodeTask,
    actors: dict[str, ActorSettings],
    endpoint: Endpoint,  # noqa: F811
) -> None:
    """The settings are sent, the key is not: it is read where the agent runs; the spans come back."""

    async def scenario() -> Episode:
        runner, _ = make_runner(SubprocessAgentAdapter(Guided, max_workers=1, variables=(KEY,)), actors=actors)
        async with runner:
            return await runner.run(task)

    check(asyncio.run(scenario()), endpoint)


def test_a_failing_actor_fails_the_episode_and_is_seen(
    play: Callable[..., Episode],
    actors: dict[str, ActorSettings],
    endpoint: Endpoint,  # noqa: F811
) -> None:
    """An answer that cannot be had is raised to the agent, and the span says why."""
    endpoint.answers = [(401, {"error": "no such key"})]
    episode = play(Guided(), actors=actors)
    assert episode.outcome.kind == "failed" and "no such key" in episode.outcome.reason
    (span,) = (span for span in episode.spans if span.kind == "actor")
    assert span.error is not None and "401" in span.error


def test_a_missing_key_is_said_before_the_first_episode(
    play: Callable[..., Episode], actors: dict[str, ActorSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the actor and the variable."""
    monkeypatch.delenv(KEY)
    with pytest.raises(UserError, match=rf"the actor 'user_simulator' needs the key .*{KEY} is not set"):
        play(Guided(), actors=actors)


def test_names_and_addresses_that_are_wrong() -> None:
    """An unknown part, a model that nobody serves, a question outside of an episode: each with what would do."""
    actors = {"judge": ActorSettings(model="openai/gpt-5-mini")}
    with pytest.raises(UserError, match=r"no actor is called 'user'; there are judge\. Name one below rollout\.actors"):
        find_actor("user", actors, SharedClients(), environ={"OPENAI_API_KEY": "k"})
    assert find_actor("judge", actors, SharedClients(), environ={"OPENAI_API_KEY": "k"}).endpoint.api_key == "k"
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        check_actors(actors, {})
    with pytest.raises(UserError, match="nobody/model"):
        check_actors({"user": ActorSettings(model="nobody/model")}, {})
    with pytest.raises(UserError, match="outside of an episode"):
        ludus.actor("judge")
