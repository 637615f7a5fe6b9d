"""Models that are served elsewhere: who they are, what they are asked, what is kept of their answers."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.api.elsewhere import ask_elsewhere, served_models
from ludus.api.sampler import RunSampler
from ludus.episodes.spec import SessionSpec
from ludus.errors import BackendError, UserError
from ludus.rewards.providers import Endpoint as Address
from ludus.runs.store import RunStore
from ludus.runs.watch.branches import Branches, demonstrations
from ludus.runs.watch.question import BRANCH, Edit, Past, Question, Said
from ludus.runs.watch.run import WatchedRun
from ludus.types import ChatRequest, Message, Sampling, ToolSpec
from tests.rewards.conftest import Endpoint, completion, endpoint  # noqa: F401
from tests.runs.conftest import episode_of

ASKED = ChatRequest((Message("user", "Which?"),), sampling=Sampling(max_new_tokens=5))
SPEC = SessionSpec(id="b-00", group_id="b", task_id=BRANCH, is_eval=True)


def test_a_model_is_named_by_its_address_or_its_provider() -> None:
    """A key goes where its variable says, and to addresses without one none does."""
    found = served_models(
        ["Qwen/Qwen3-8B=http://127.0.0.1:8000/v1/", "openai/o3"], environ={"OPENAI_API_KEY": "theirs"}
    )
    assert found == {
        "Qwen/Qwen3-8B": Address("http://127.0.0.1:8000/v1", "Qwen/Qwen3-8B", "none"),
        "openai/o3": Address("https://api.openai.com/v1", "o3", "theirs"),
    }
    (one,) = served_models(["m=https://x/v1"], key_variable="MINE", environ={"MINE": "secret"}).values()
    assert one.api_key == "secret" and served_models([]) == {}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("step-000080=http://x/v1", "needs another"),
        ("base=http://x/v1", "needs another"),
        ("m=127.0.0.1:8000", "NAME=ADDRESS"),
        ("=http://x/v1", "NAME=ADDRESS"),
        ("qwen3", "names no provider"),
        ("openai/o3", "OPENAI_API_KEY"),
    ],
)
def test_what_names_no_model_is_refused(line: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        served_models([line], environ={})
    with pytest.raises(UserError, match="MINE is not set"):
        served_models([], key_variable="MINE", environ={})
    with pytest.raises(UserError, match="two models"):
        served_models(["m=http://x/v1", "m=http://y/v1"], environ={})


def ask(endpoint: Endpoint, request: ChatRequest = ASKED) -> Any:  # noqa: F811
    return asyncio.run(ask_elsewhere(Address(endpoint.base_url, "big", "k"), request, SPEC))


def test_a_request_is_what_the_turn_was_asked(endpoint: Endpoint) -> None:  # noqa: F811
    """Messages with calls and results, tools, and of its sampling what everybody takes."""
    endpoint.answers = [completion("Three.", finish_reason="length")]
    messages = (*ASKED.messages, Message("assistant", None), Message("tool", "3", tool_call_id="c"))
    sampling = Sampling(temperature=0.5, top_p=0.9, stop=("\n",), max_new_tokens=5, seed=4, top_logprobs=5)
    tools = (ToolSpec("add", "adds", {"type": "object"}),)
    episode = ask(endpoint, replace(ASKED, messages=messages, sampling=sampling, tools=tools))
    (body,) = endpoint.bodies
    assert [each["role"] for each in body.pop("messages")] == ["user", "assistant", "tool"]
    assert body.pop("tools")[0]["function"]["name"] == "add"
    assert body == {"model": "big", "temperature": 0.5, "top_p": 0.9, "stop": ["\n"], "max_tokens": 5}
    assert endpoint.keys == ["Bearer k"]
    (turn,) = episode.session.turns
    assert turn.reply == Message("assistant", "Three.") and turn.messages == messages
    assert turn.sampled.token_ids == () and turn.sampled.stop_reason == "length"
    assert (episode.id, episode.group_id, episode.outcome.kind, episode.is_eval) == ("b-00", "b", "ok", True)


def test_calls_of_tools_are_part_of_the_answer_and_what_is_no_message_is_refused(endpoint: Endpoint) -> None:  # noqa: F811
    function = {"name": "add", "arguments": '{"a": 1}'}
    said = {"role": "assistant", "content": None, "refusal": None, "reasoning_content": "Hm."}
    called = {**said, "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    endpoint.answers = [(200, {"choices": [{"message": each}]}) for each in (called, {**said, "tool_calls": [3]})]
    reply = ask(endpoint).session.turns[0].reply
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("add", '{"a": 1}')]
    assert reply.content is None and reply.reasoning == "Hm."
    with pytest.raises(BackendError, match="cannot be read"):
        ask(endpoint)


def test_a_branch_and_a_chat_are_kept_beside_the_run(endpoint: Endpoint, tmp_path: Path) -> None:  # noqa: F811
    """Without tokens, marked with who served them, its key nowhere; what is chosen is a demonstration as any other.
    Looked at by themselves, no token stands for those that are not known."""
    with RunStore.create(tmp_path, "run", "name: run\nmodel: {path: nowhere}\n") as store:
        store.add_episode(episode_of(0, num_turns=2), step=1)
        past = store.episode_at(1).session.turns[1]
    run = tmp_path / "run"
    about = {"from": {"episode": "ep-0", "turn": past.id}, "model": "big", "served_by": endpoint.base_url}
    edit = Edit(message_index=0, content="Say it otherwise.")
    branch = Question(
        session="b-00",
        group="b",
        model="big",
        past=Past(num=1, turn=past.id, edit=edit),
        metadata={BRANCH: {**about, "edit": edit.model_dump(), "created_at": 1.0}},
    )
    said = (Said(role="user", content="Hi"),)
    chat = Question(session="chat-1-big", group="chat-1", model="big", messages=said, max_tokens=7, temperature=0.0)
    endpoint.answers = [completion("Otherwise."), completion("Hello.")]

    async def ask_both() -> list[dict[str, Any]]:
        sampler = RunSampler(run, {"big": Address(endpoint.base_url, "big", "a-key-of-mine")})
        try:
            return [event for each in (branch, chat) async for event in sampler.answer(each)]
        finally:
            await sampler.close()

    events = asyncio.run(ask_both())
    assert [(event["done"], event["text"], event["tokens"]) for event in events] == [
        (True, "Otherwise.", None),
        (True, "Hello.", None),
    ]
    first, second = endpoint.bodies
    assert len(first["messages"]) == len(past.messages) and first["messages"][0]["content"] == edit.content
    assert second["messages"] == [{"role": "user", "content": "Hi"}]
    assert second["temperature"] == 0.0 and second["max_tokens"] == 7
    branches = Branches(run, lambda: None)
    (listed,) = branches.listed()
    assert (listed["model"], listed["served_by"]) == ("big", endpoint.base_url)
    assert branches.choose("b", 0, is_chosen=True)
    (row,) = demonstrations(run)
    assert [each["content"] for each in row["completion"]] == ["Otherwise."]
    for path in run.rglob("*"):
        assert path.is_dir() or b"a-key-of-mine" not in path.read_bytes()
    with closing(WatchedRun(run / "branches", "branches")) as watched:
        (turn,) = watched.episode("b-00")["turns"]
        tokens = watched.tokens("b-00", turn["id"], offset=0, limit=10)
    assert turn["num_prompt_tokens"] is turn["num_sampled_tokens"] is None
    assert (tokens["total"], tokens["prompt_total"], tokens["tokens"]) == (0, 0, [])
