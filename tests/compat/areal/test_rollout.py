"""Workflows over token ids: what they ask, what they return, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from ludus.agents.kinds import resolve_workflow
from ludus.compat.areal import context as workflow_context
from ludus.compat.areal import stats_tracker
from ludus.compat.areal.generation import GenerationHyperparameters, ModelRequest, ModelResponse
from ludus.compat.areal.openai_client import ArealOpenAI
from ludus.compat.areal.rollout import EpisodeEngine, RolloutWorkflow, token_rows
from ludus.compat.areal.verified import MultiTurnWorkflow, RLVRWorkflow
from ludus.compat.config import Config
from ludus.errors import UserError
from ludus.types import Episode

Play = Callable[..., Episode]
PROMPT = [5, 6, 7]


def rows_of(*answers: ModelResponse, rewards: list[float], marks: list[int] | None = None) -> dict[str, Any]:
    """The arrays that such workflows build, padded on the right."""
    lines = [[*answer.input_tokens, *answer.output_tokens] for answer in answers]
    longest = max(map(len, lines))
    masks = [[0] * answer.input_len + [1] * answer.output_len for answer in answers]
    return {
        "input_ids": [line + [0] * (longest - len(line)) for line in lines],
        "attention_mask": [[1] * len(line) + [0] * (longest - len(line)) for line in lines],
        "loss_mask": [mask + [0] * (longest - len(mask)) for mask in masks],
        "logprobs": [[0.0] * longest for _ in lines],
        "versions": [[-1] * longest for _ in lines],
        "rewards": rewards,
    }


def workflow(function: Callable[..., Any]) -> RolloutWorkflow:
    """One whose episode is the function."""

    class Workflow(RolloutWorkflow):
        async def arun_episode(self, engine: EpisodeEngine, data: Any) -> Any:
            return await function(engine, data)

    return Workflow()


def test_token_ids_go_out_and_come_back_as_recorded(play: Play) -> None:
    """An answer has the prompt it was given, its tokens, logprobs and versions; its row is trained as recorded."""
    seen: list[ModelResponse] = []

    async def run(engine: EpisodeEngine, data: Any) -> Any:
        answer = await engine.agenerate(
            ModelRequest(input_ids=PROMPT, gconfig=GenerationHyperparameters(), tokenizer="own")
        )
        seen.append(answer)
        assert engine.get_version() == answer.output_versions[-1]
        with pytest.raises(
            AttributeError, match=r"submit is not here: the engine of `arun_episode` belongs to one episode"
        ):
            engine.submit(data, None)
        return rows_of(answer, rewards=[0.5])

    episode = play(workflow(run))
    (turn,), (answer,) = episode.session.turns, seen
    assert episode.outcome.kind == "ok", episode.outcome
    assert (answer.input_tokens, answer.input_len) == (PROMPT, 3)
    assert tuple(answer.output_tokens) == turn.sampled.token_ids
    assert tuple(answer.output_logprobs) == turn.sampled.logprobs
    assert tuple(answer.output_versions) == turn.sampled.versions
    assert answer.stop_reason == "stop" and answer.output_tokens_without_stop == answer.output_tokens[:-1]
    assert answer.end_with_stop and not ModelResponse(output_tokens=[1]).end_with_stop and answer.tokenizer == "own"
    assert episode.rewards == {turn.id: 0.5} and episode.reward == 0.5
    assert episode.left_out == {} and episode.has_returns


def test_each_rows_reward_is_its_own(play: Play) -> None:
    """Rows that end turn by turn keep their rewards: nothing is added up along the conversation."""

    async def run(engine: EpisodeEngine, data: Any) -> Any:
        first = await engine.agenerate(ModelRequest(input_ids=PROMPT))
        longer = [*first.input_tokens, *first.output_tokens, 9, 9]
        second = await engine.agenerate(ModelRequest(input_ids=longer))
        return rows_of(first, second, rewards=[0.9, 1.0])

    episode = play(workflow(run))
    first, second = episode.session.turns
    assert second.prefix == first.id
    assert episode.rewards == {first.id: 0.9, second.id: 1.0}


def test_answers_that_no_row_holds_are_left_out(play: Play) -> None:
    """Of four tries one is returned: the tokens of the others are not trained, and accounted for."""

    async def run(engine: EpisodeEngine, data: Any) -> Any:
        answers = [await engine.agenerate(ModelRequest(input_ids=[*PROMPT, idx])) for idx in range(4)]
        return rows_of(answers[2], rewards=[1.0])

    episode = play(workflow(run))
    assert set(episode.rewards) == {episode.session.turns[2].id}
    assert set(episode.left_out) == {turn.id for idx, turn in enumerate(episode.session.turns) if idx != 2}


def test_a_token_that_nobody_sampled_fails_the_episode(play: Play) -> None:
    """Rows that were tokenized anew are not trained in place of the record."""

    async def run(engine: EpisodeEngine, data: Any) -> Any:
        rows = rows_of(await engine.agenerate(ModelRequest(input_ids=PROMPT)), rewards=[1.0])
        rows["input_ids"][0][-1] += 1
        return rows

    episode = play(workflow(run))
    assert episode.outcome.kind == "failed"
    assert "the model did not sample it" in episode.outcome.reason


def test_none_rejects(play: Play) -> None:
    """As in every family."""

    async def run(engine: EpisodeEngine, data: Any) -> None:
        await engine.agenerate(ModelRequest(input_ids=PROMPT))

    assert play(workflow(run)).outcome.kind == "rejected"


@dataclass
class FakeTensor:
    """What arrays of torch and numpy have in common."""

    values: Any

    def tolist(self) -> Any:
        return self.values


def test_arrays_of_any_library_are_read() -> None:
    """Padding is left out on either side; a reward of shape (1,) is a number."""
    (row,) = token_rows(
        {
            "input_ids": FakeTensor([[0, 5, 6, 7]]),
            "attention_mask": FakeTensor([[0, 1, 1, 1]]),
            "loss_mask": FakeTensor([[0, 0, 1, 1]]),
            "rewards": FakeTensor([[0.5]]),
        }
    )
    assert (row.token_ids, row.mask, row.reward) == ([5, 6, 7], [False, True, True], 0.5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss_mask": None}, "the rows have no 'loss_mask'"),
        ({"rewards": [1.0, 2.0]}, "different numbers of rows: input_ids 1"),
        ({"attention_mask": [[1]]}, "row 0 has 2 input_ids, an attention_mask of 1"),
        ({"input_ids": [5, 6]}, r"must have the shape \(rows, tokens\)"),
    ],
)
def test_rows_that_do_not_fit_are_named(change: Mapping[str, Any], words: str) -> None:
    """What is missing, or how the shapes disagree."""
    arrays = {"input_ids": [[5, 6]], "attention_mask": [[1, 1]], "loss_mask": [[0, 1]], "rewards": [1.0], **change}
    with pytest.raises(UserError, match=words):
        token_rows({name: value for name, value in arrays.items() if value is not None})


@pytest.mark.parametrize(
    ("gconfig", "words"),
    [
        ({"n_samples": 4}, "n_samples=4: one call gives one answer"),
        ({"min_new_tokens": 2}, "gconfig.min_new_tokens=2 cannot act"),
        ({"max_tokens": 3}, "max_tokens=3 leaves no room"),
        ({"temprature": 1.0}, "gconfig has no parameter 'temprature'"),
    ],
)
def test_sampling_that_cannot_act_is_refused(play: Play, gconfig: Mapping[str, Any], words: str) -> None:
    """Nothing is dropped silently."""

    async def run(engine: EpisodeEngine, data: Any) -> None:
        await engine.agenerate(ModelRequest(input_ids=PROMPT, gconfig=gconfig))

    assert words in play(workflow(run)).outcome.reason


def test_sampling_parameters_reach_the_engine(play: Play) -> None:
    """Those that are given replace the run's; max_tokens counts the prompt."""

    async def run(engine: EpisodeEngine, data: Any) -> float:
        gconfig = GenerationHyperparameters(temperature=0.5, max_tokens=5, max_new_tokens=16384, stop=["x"])
        await engine.agenerate(ModelRequest(input_ids=PROMPT, gconfig=gconfig.new(greedy=False)))
        return 1.0

    episode = play(workflow(run))
    sampling = episode.session.turns[0].sampling
    assert (sampling.temperature, sampling.max_new_tokens, sampling.stop) == (0.5, 2, ("x",))


def test_interactions_are_handed_back(play: Play) -> None:
    """`ArealOpenAI`: calls through the SDK, rewards by completion id, returns made of them, exported."""
    completions: list[str] = []

    async def run(engine: EpisodeEngine, data: Any) -> Any:
        client = ArealOpenAI(engine=engine, tokenizer=None)
        messages: list[Any] = [{"role": "user", "content": "2+2?"}]
        for _ in range(2):
            completion = await client.chat.completions.create(model="default", messages=messages)
            completions.append(completion.id)
            messages += [completion.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "?"}]
        client.set_reward(completions[0], -0.2)
        client.set_last_reward(1.0)
        client.apply_reward_discount(0.9)
        style = data["question"]
        exported = client.export_interactions(style=style)
        last = exported[completions[-1]]
        assert last.interaction_id == completions[-1] and last.messages[0] == messages[0] | {"content": "2+2?"}
        assert [each["role"] for each in last.output_message_list] == ["assistant"]
        with pytest.raises(AttributeError, match="to_tensor_dict is not here"):
            last.to_tensor_dict()
        return exported

    def styled(style: str) -> Episode:
        async def run_styled(engine: EpisodeEngine, data: Any) -> Any:
            return await run(engine, {"question": style})

        completions.clear()
        return play(workflow(run_styled))

    for style in ("individual", "concat"):
        episode = styled(style)
        first, second = episode.session.turns
        assert episode.outcome.kind == "ok", episode.outcome
        assert episode.rewards == {first.id: pytest.approx(0.7), second.id: 1.0}
        assert episode.has_returns and episode.left_out == {}


def test_interactions_that_are_not_handed_back_are_left_out(play: Play) -> None:
    """A workflow trains a part of its calls; rewards that it did not discount are the run's to discount."""

    async def run(engine: EpisodeEngine, data: Any) -> Any:
        client = ArealOpenAI(engine)
        asked = [{"role": "user", "content": text} for text in ("a", "b")]
        kept, _ = [await client.chat.completions.create(messages=[message]) for message in asked]
        client.set_reward(kept.id, 1.0)
        exported = client.export_interactions()
        return {kept.id: exported[kept.id]}

    episode = play(workflow(run))
    kept, other = episode.session.turns
    assert episode.rewards == {kept.id: 1.0}
    assert set(episode.left_out) == {other.id} and not episode.has_returns


def test_the_context_of_a_workflow(play: Play) -> None:
    """Which row, which scope; a shared client that the next episode finds too; numbers become metrics."""
    clients: list[Any] = []

    async def run(data: Any, **_: Any) -> float:
        assert workflow_context.get() == workflow_context.WorkflowContext(is_eval=False, task_id="row0")
        client = await workflow_context.get_httpx_client()
        assert isinstance(client, httpx.AsyncClient) and client is await workflow_context.get_httpx_client()
        clients.append(client)
        tracker = stats_tracker.get(workflow_context.stat_scope())
        tracker.scalar(num_searches=3, depth=1)
        tracker.scalar(num_searches=5)
        with tracker.record_timing("search"):
            pass
        return 1.0

    episode = play(run)
    assert "never called the model" in episode.outcome.reason
    assert workflow_context.get() == workflow_context.WorkflowContext()
    assert workflow_context.stat_scope() == "rollout"
    assert {name: episode.metrics[name] for name in ("num_searches", "depth")} == {"num_searches": 4.0, "depth": 1.0}
    assert "search_s" in episode.metrics


def test_no_client_outside_of_an_episode() -> None:
    """Who would close it?"""
    import asyncio

    with pytest.raises(UserError, match="works while an episode is played"):
        asyncio.run(workflow_context.get_httpx_client())
    stats_tracker.get().scalar(dropped=1.0)


def is_four(prompt: str, completions: str, prompt_ids: Any, completion_ids: Any, answer: str, **_: Any) -> float:
    return float(completions == answer and "2+2" in prompt and len(prompt_ids) > 0 < len(completion_ids))


ROW = {"messages": [{"role": "user", "content": "2+2?"}], "answer": "four"}


def verified(
    play: Play, ready_made: RolloutWorkflow, answers: Callable[[Any], str], row: Mapping[str, Any] = ROW
) -> Episode:
    async def run(engine: EpisodeEngine, data: Any) -> Any:
        return await ready_made.arun_episode(engine, row)

    return play(workflow(run), answers)


def test_one_answer_is_verified(play: Play) -> None:
    """Prompt and answer as text and tokens reach the reward function, with the row's columns."""
    ready_made = RLVRWorkflow(is_four, gconfig={"n_samples": 8, "max_new_tokens": 8})
    episode = verified(play, ready_made, lambda call: "four")
    assert (episode.outcome.kind, episode.reward, episode.metrics["success"]) == ("ok", 1.0, 1.0)
    assert [span.kind for span in episode.spans] == ["reward"]
    assert verified(play, ready_made, lambda call: "five").reward == 0.0
    ready_made.async_reward_fn.close()


def test_a_prompt_of_the_users_own_tokens(play: Play) -> None:
    """`get_input_ids_fn` gets the messages, the tokenizer and the flag, and its ids are what the model sees."""
    ready_made = RLVRWorkflow(
        lambda prompt, completions, prompt_ids, completion_ids, **_: float(prompt_ids == PROMPT),
        tokenizer="mine",
        get_input_ids_fn=lambda messages, tokenizer, enable_thinking: PROMPT if tokenizer == "mine" else [],
        data_extract_prompt_fn=lambda data: data["messages"],
    )
    assert verified(play, ready_made, lambda call: "four").reward == 1.0
    ready_made.async_reward_fn.close()


def test_tries_go_on_until_one_is_right(play: Play) -> None:
    """Each try sees those before it, token by token; the reward is discounted by the tries that failed."""
    said = iter(["three", "five", "four"])
    ready_made = MultiTurnWorkflow(is_four, max_turns=5, turn_discount=0.5, retry_prompt="No. 2+2?")
    episode = verified(play, ready_made, lambda call: next(said))
    assert episode.outcome.kind == "ok", episode.outcome
    assert [turn.fork for turn in episode.session.turns] == [None, None, None]
    assert [turn.prefix for turn in episode.session.turns[1:]] == [turn.id for turn in episode.session.turns[:2]]
    assert set(episode.rewards.values()) == {0.25}
    assert episode.metrics["tries"] == 3.0 and episode.metrics["success"] == 1.0
    failed = verified(play, MultiTurnWorkflow(is_four, max_turns=2), lambda call: "five")
    assert (failed.reward, failed.metrics["tries"]) == (0.0, 2.0)


def test_a_reward_function_by_its_name() -> None:
    """As a configuration names it."""
    assert (
        RLVRWorkflow("ludus.compat.areal.verifiers:gsm8k_reward_fn").async_reward_fn.reward_fn.__name__
        == "gsm8k_reward_fn"
    )


class NotAsync:
    def arun_episode(self, engine: Any, data: Any) -> Any: ...


class OtherArguments:
    async def arun_episode(self, data: Any) -> Any: ...


@pytest.mark.parametrize(
    ("agent", "words"),
    [(NotAsync, "NotAsync.arun_episode must be async"), (OtherArguments, r"must take \(engine, data\)")],
)
def test_a_workflow_that_cannot_play_is_refused(agent: object, words: str) -> None:
    """Before anything runs."""
    with pytest.raises(UserError, match=words):
        resolve_workflow(agent, kinds=Config.agent_kinds)
