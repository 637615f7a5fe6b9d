"""A run in OpenTelemetry: the real SDK sends to a collector that is started here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ludus.runs.interactions import message_json
from ludus.runs.trackers.otlp import _messages
from ludus.types import Episode, Message
from tests.runs.trackers.collector import Collected, collector, values_of
from tests.runs.trackers.conftest import SUMMARY, tracked, with_tools

pytestmark = pytest.mark.timeout(400)  # the tracker's process has the lowest priority


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collected]:
    """A run of one episode, which ended and went on with a second."""
    root = tmp_path_factory.mktemp("otlp")
    with collector() as found:
        settings = {"to": "otlp", "project": "math", "otlp": {"endpoint": found.url, "headers": {"x-key": "secret"}}}
        with tracked(root, "first", **settings) as run:
            run.add_metrics(1, {"rollout/reward": 0.25})
            run.add_episode(with_tools(1), step=1)
        with tracked(root, "first", goes_on_at=1, **settings) as run:
            run.add_metrics(2, {"rollout/reward": 0.5})
            run.add_episode(with_tools(2), step=2)
            run.add_episode(_with_half_a_character(3), step=3)
            run.write_summary(SUMMARY)
        yield found


def _with_half_a_character(seed: int) -> Episode:
    """As an agent leaves it that cuts a text where it likes."""
    episode = with_tools(seed)
    first, *rest = episode.session.turns
    turns = (replace(first, messages=(Message("user", "\ud83d"),)), *rest)
    return replace(episode, id="ep-\ud83d", session=replace(episode.session, turns=turns))


def spans_of(collected: Collected, step: str) -> list[Any]:
    return [span for span in collected.spans if values_of(span.attributes).get("ludus.step") == step]


def test_spans_have_the_names_of_the_conventions(collected: Collected) -> None:
    """The agent, its model's answers and its tools, of one trace, below the agent."""
    agent, *below = spans_of(collected, "1")
    assert (agent.name, agent.parent_span_id) == ("invoke_agent first", b"")
    assert [span.name for span in below] == [
        "chat smollm2-135m",
        "execute_tool add",
        "chat smollm2-135m",
        "execute_tool search",
        "chat smollm2-135m",
        "think",
        "grade",
    ]
    assert {span.parent_span_id for span in below} == {agent.span_id}
    assert {span.trace_id for span in below} == {agent.trace_id}
    assert len({span.span_id for span in [agent, *below]}) == 8
    assert {span.trace_id for span in spans_of(collected, "2")}.isdisjoint({agent.trace_id})


def test_half_a_character_holds_up_nothing(collected: Collected) -> None:
    """The episode comes with a mark in its place, and what comes after it."""
    agent = spans_of(collected, "3")[0]
    assert values_of(agent.attributes)["ludus.episode"] == "ep-?" and spans_of(collected, "2")


def test_an_answer_says_what_was_asked_and_used(collected: Collected) -> None:
    """Under the conventions' keys, messages in the conventions' JSON."""
    episode = with_tools(1)
    turn = episode.session.turns[0]
    span = spans_of(collected, "1")[1]
    told = values_of(span.attributes)
    assert (told["gen_ai.operation.name"], told["gen_ai.provider.name"]) == ("chat", "ludus")
    assert told["gen_ai.usage.output_tokens"] == len(turn.sampled.token_ids)
    num_prompt = len(episode.session.path_ids(turn.node)) - len(turn.sampled.token_ids)
    assert told["gen_ai.usage.input_tokens"] == num_prompt
    assert told["gen_ai.response.finish_reasons"] == [turn.finish_reason]
    asked, (answer,) = json.loads(told["gen_ai.input.messages"]), json.loads(told["gen_ai.output.messages"])
    assert asked[-1] == {"role": "user", "parts": [{"type": "text", "content": turn.messages[-1].content}]}
    assert answer["parts"][0] == {"type": "text", "content": turn.reply.content}
    assert (answer["role"], answer["finish_reason"]) == ("assistant", turn.finish_reason)
    assert span.end_time_unix_nano - span.start_time_unix_nano == pytest.approx(0.4e9, abs=1e3)


def test_a_conversation_is_an_episode(collected: Collected) -> None:
    """All of its spans have its id; thinking is a part of a message, before what was said."""
    assert {values_of(span.attributes)["gen_ai.conversation.id"] for span in spans_of(collected, "1")} == {"ep-1"}
    thought = Message("assistant", "4", reasoning="2 and 2")
    (message,) = json.loads(_messages([message_json(thought)]))
    assert message["parts"] == [{"type": "reasoning", "content": "2 and 2"}, {"type": "text", "content": "4"}]


def test_tools_rewards_and_failures(collected: Collected) -> None:
    """Arguments and results of a tool, its error, and the reward as the result of an evaluation."""
    agent, _, add, undecoded, search, *_ = spans_of(collected, "1")
    told = values_of(add.attributes)
    assert (told["gen_ai.tool.name"], told["gen_ai.tool.call.result"]) == ("add", '"3"')
    assert json.loads(told["gen_ai.tool.call.arguments"]) == {"a": 1}
    assert values_of(search.attributes)["error.type"] == "TimeoutError"
    assert (search.status.code, search.status.message) == (2, "TimeoutError: too long")
    assert undecoded.events[0].name == "Failed to decode tool call"
    (evaluated,) = agent.events
    assert evaluated.name == "gen_ai.evaluation.result"
    assert values_of(evaluated.attributes) == {
        "gen_ai.evaluation.name": "reward",
        "gen_ai.evaluation.score.value": 0.5,
    }


def test_metrics_are_gauges(collected: Collected) -> None:
    """With their step; the numbers of the summary in the end, and the report as an event."""
    names = [name for name, _ in collected.metrics]
    assert [value for name, value in collected.metrics if name == "ludus.rollout.reward"] == [0.25, 0.5]
    assert [value for name, value in collected.metrics if name == "ludus.step"] == [0.0, 1.0, 2.0]
    assert dict(collected.metrics)["ludus.summary.ledger.sampled"] == 9.0 and names.count("ludus.summary.reward") == 1
    (ended,) = [span for span in collected.spans if span.name == "run ended"]
    assert json.loads(values_of(ended.attributes)["ludus.summary"]) == SUMMARY
    (report,) = ended.events
    assert report.name == "ludus.report"
    assert "| rollout/reward | 0.25 | 0.5 |" in values_of(report.attributes)["text"]


def test_a_resumed_run_is_the_same_service(collected: Collected) -> None:
    """One instance of the project's service, and the key in every request."""
    assert len(collected.services) == 1 and {name for name, _ in collected.services} == {"math"}
    assert {each["x-key"] for each in collected.headers} == {"secret"}
    assert len(spans_of(collected, "1")) == len(spans_of(collected, "2")) == 8
