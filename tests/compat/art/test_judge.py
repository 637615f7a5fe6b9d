"""RULER on groups of trajectories."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from openai.types.chat.chat_completion import Choice

from ludus.compat.art.gathering import gather_trajectory_groups
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.judge import ruler_score_group
from ludus.compat.art.trajectory import History, Trajectory
from ludus.errors import BackendError, UserError
from ludus.rewards.chat.scripted import ScriptedChatModel
from ludus.rewards.judge.attempts import read_attempts
from ludus.rewards.judge.ruler import JudgeOptions

ASK = {"role": "user", "content": "How many?"}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def answer(text: str) -> Choice:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}, "turn_id": "t-1"}
    return Choice.model_validate(choice)


def trajectory(text: str, **fields: Any) -> Trajectory:
    return Trajectory(messages_and_choices=[ASK, answer(text)], **fields)


def by_number(messages: Sequence[Mapping[str, Any]]) -> str:
    attempts = read_attempts(messages[1]["content"])
    entries = [
        {"trajectory_id": name, "explanation": f"it says {text}", "score": float(text)}
        for name, text in ((name, one.main.messages[-1]["content"]) for name, one in attempts.items())
    ]
    return json.dumps({"scores": entries})


def judged(group: TrajectoryGroup, model: ScriptedChatModel, **options: Any) -> TrajectoryGroup | None:
    return asyncio.run(ruler_score_group(group, model, **options))


def test_scores_become_rewards_and_the_old_ones_are_kept() -> None:
    """Reward, metrics, explanation; everything else of trajectory and group stays as it was."""
    first = trajectory("0.2", reward=3.0, metrics={"steps": 4}, metadata={"id": 7}, logs=["began"])
    group = TrajectoryGroup(
        [first, trajectory("0.9"), ValueError("lost")], metadata={"task": 1}, metrics={"m": 2}, logs=["l"]
    )
    found = judged(group, ScriptedChatModel(by_number))
    assert found is not None
    assert [each.reward for each in found] == [0.2, 0.9]
    one = found.trajectories[0]
    assert one.metrics == {"steps": 4, "independent_reward": 3.0, "ruler_score": 0.2}
    assert one.metadata == {"id": 7}
    assert one.logs == ["began", "RULER explanation: it says 0.2"]
    assert one.messages_and_choices[1] is first.messages_and_choices[1]
    assert one.start_time == first.start_time
    assert [error.type for error in found.exceptions] == ["ValueError"]
    assert (found.metadata, found.logs, found.metrics["m"]) == ({"task": 1}, ["l"], 2)


def test_the_group_that_was_given_is_not_changed() -> None:
    """A judge that is asked twice finds the same group."""
    group = TrajectoryGroup([trajectory("0.2", reward=3.0), trajectory("0.9")], metrics={"m": 2})
    before = group.model_dump()
    found = judged(group, ScriptedChatModel(by_number))
    assert found is not None
    found.trajectories[0].metadata["x"] = 1
    found.trajectories[0].messages_and_choices.append(answer("0.3"))
    assert group.model_dump() == before
    again = judged(found, ScriptedChatModel(by_number), rubric="Another one.")
    assert again is not None
    assert again.trajectories[1].metrics["independent_reward"] == 0.0


def test_what_judging_took_is_in_the_metrics_of_the_group() -> None:
    """Calls, tokens, cost, answers that were of no use."""
    answers = iter(["Both are fine."])
    model = ScriptedChatModel(lambda messages: next(answers, None) or by_number(messages))
    group = TrajectoryGroup([trajectory("0.2"), trajectory("0.9")])
    found = judged(group, model, options=JudgeOptions(num_passes=2))
    assert found is not None
    assert found.metrics["judge/calls"] == 3
    assert found.metrics["judge/unusable_answers"] == 1
    assert found.metrics["judge/cost_usd"] == 0.0
    assert found.metrics["judge/prompt_tokens"] > 0


def test_additional_histories_and_tools_are_judged_too() -> None:
    """What sub-agents did stands inside the trajectory they belong to."""
    helper = History(messages_and_choices=[{"role": "user", "content": "Add."}, answer("helped")])
    group = TrajectoryGroup([trajectory("0.2", additional_histories=[helper], tools=[ADD]), trajectory("0.9")])
    model = ScriptedChatModel(by_number)
    judged(group, model)
    shown = read_attempts(model.asked[0][1]["content"])
    assert shown["1"].conversations[1].messages[-1]["content"] == "helped"
    assert '"name": "add"' in model.asked[0][1]["content"]


def test_a_failing_judge_is_swallowed_or_raised(caplog: pytest.LogCaptureFixture) -> None:
    """Swallowed, the group is left out and the log says why."""
    group = TrajectoryGroup([trajectory("0.2"), trajectory("0.9")])
    with pytest.raises(BackendError, match="cannot be used"):
        judged(group, ScriptedChatModel(["no"] * 3))
    assert judged(group, ScriptedChatModel(["no"] * 3), swallow_exceptions=True) is None
    assert "a group of 2 trajectories is left out, because its judge failed" in caplog.text


def test_a_mistake_of_the_user_is_never_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key no group would ever be judged, and training would go on with nothing."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError, match="set OPENAI_API_KEY"):
        asyncio.run(ruler_score_group(TrajectoryGroup([trajectory("0.2")]), "openai/o3", swallow_exceptions=True))


def test_an_empty_group_asks_nobody() -> None:
    """Where all rollouts failed there is nothing to compare."""
    group = TrajectoryGroup([ValueError("lost")])
    assert judged(group, ScriptedChatModel([])) is group


def test_a_judge_that_fails_on_one_group_costs_that_group_alone() -> None:
    """Bad JSON, scores out of range, scores in another order: each has its outcome, and the gathering goes on."""

    def judge(messages: Sequence[Mapping[str, Any]]) -> str:
        kind = next(iter(read_attempts(messages[1]["content"]).values())).main.messages[0]["content"]
        if kind == "bad":
            return "I would rather not."
        fair = json.loads(by_number(messages))["scores"]
        if kind == "reordered":
            fair.reverse()
        if kind == "tens":
            fair = [{**entry, "score": 10 * entry["score"]} for entry in fair]
        return json.dumps({"scores": fair})

    async def rollout(kind: str, text: str) -> Trajectory:
        return Trajectory(messages_and_choices=[{"role": "user", "content": kind}, answer(text)])

    async def main() -> list[TrajectoryGroup]:
        return await gather_trajectory_groups(
            (
                TrajectoryGroup(rollout(kind, text) for text in ("0.05", "0.2", "0.9"))
                for kind in ("fair", "bad", "reordered", "tens")
            ),
            after_each=lambda group: ruler_score_group(group, ScriptedChatModel(judge), swallow_exceptions=True),
            pbar_desc=None,
        )

    rewards = [[each.reward for each in group] for group in asyncio.run(main())]
    assert rewards == [[0.05, 0.2, 0.9]] * 3
