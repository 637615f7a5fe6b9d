"""Tasks that a model thinks up for agents with an MCP server's tools."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import mcp.types
import pytest

from ludus.agents.tools.tool_set import ToolSet
from ludus.compat.art.generate import generate_scenarios
from ludus.compat.art.scenario import (
    GeneratedScenario,
    GeneratedScenarioCollection,
    MCPResource,
    MCPTool,
    complete_task_tool,
)
from ludus.errors import BackendError, UserError
from ludus.rewards.chat.scripted import ScriptedChatModel

TOOL = MCPTool("forecast", "The weather of a place.", {"type": "object", "properties": {"place": {"type": "string"}}})


def answer(*tasks: Any) -> str:
    return json.dumps({"scenarios": [{"task": task, "difficulty": 1 + i % 5} for i, task in enumerate(tasks)]})


def generate(model: Any, num_scenarios: int, **options: Any) -> GeneratedScenarioCollection:
    return asyncio.run(
        generate_scenarios([TOOL], num_scenarios=num_scenarios, show_preview=False, generator_model=model, **options)
    )


def test_the_model_is_shown_the_tools() -> None:
    """Names, descriptions, schemas, resources, and what the user wants besides."""
    model = ScriptedChatModel([answer("a", "b")])
    found = generate(
        model,
        2,
        resources=[{"uri": "file://x", "name": "log", "mimeType": "text/plain"}],
        custom_instructions="Ask about {Oslo}.",
    )
    assert [scenario.task for scenario in found] == ["a", "b"]
    prompt = model.asked[0][0]["content"]
    for text in ('"name": "forecast"', '"place"', '"uri": "file://x"', "Ask about {Oslo}.", "Think up 2 tasks"):
        assert text in prompt


def test_missing_ones_are_asked_for_and_double_ones_left_out() -> None:
    """The model is told which are there already."""
    model = ScriptedChatModel([answer("a", "b", "a"), "no JSON", answer("b", "c", "d", "e")])
    found = generate(model, 4)
    assert [scenario.task for scenario in found] == ["a", "b", "c", "d"]
    assert "Think up 2 tasks" in model.asked[1][0]["content"]
    assert "  - a\n  - b\n" in model.asked[2][0]["content"]


def test_entries_that_are_no_scenarios_are_left_out() -> None:
    """The good ones of an answer count."""
    entries = [
        {"task": "good", "difficulty": 3},
        {"task": "too hard", "difficulty": 9},
        {"task": "", "difficulty": 1},
        {"difficulty": 1},
        "words",
        {"task": "half", "difficulty": 1.5},
    ]
    text = "```json\n" + json.dumps({"scenarios": entries}) + "\n```"
    assert [scenario.task for scenario in generate(ScriptedChatModel([text]), 1)] == ["good"]


def test_a_model_that_gives_no_more_is_an_error() -> None:
    """It says how many there were, and what the model said last."""
    with pytest.raises(BackendError, match=r"gave 1 scenarios of 2, and in 3 calls no more of them.*'sorry'"):
        generate(ScriptedChatModel([answer("a"), "sorry", "sorry", "sorry"]), 2)


def test_many_are_asked_for_in_several_calls() -> None:
    """No call asks for more than a model gives."""
    tasks = iter(range(1000))
    model = ScriptedChatModel(lambda _: answer(*(f"task {next(tasks)}" for _ in range(40))))
    assert len(generate(model, 100)) == 100
    assert len(model.asked) == 3


def test_tools_of_mcps_own_client_are_understood() -> None:
    """What `list_tools` of the mcp package returns, as it is."""
    tool = mcp.types.Tool(name="add", description="Adds.", inputSchema={"type": "object", "title": "x"})
    model = ScriptedChatModel([answer("a")])
    asyncio.run(generate_scenarios([tool], num_scenarios=1, show_preview=False, generator_model=model))
    assert '"name": "add"' in model.asked[0][0]["content"]
    assert '"title": "x"' in model.asked[0][0]["content"]


def test_tools_of_a_real_server(tmp_path: Path) -> None:
    """As agents get them in training: from a server that is running."""
    server = Path(__file__).parents[2] / "agents" / "tools" / "mcp_server.py"
    servers = {"mcpServers": {"tests": {"command": sys.executable, "args": [str(server)]}}}
    (tmp_path / "servers.json").write_text(json.dumps(servers))
    entry = {"config": {"type": "mcp"}, "mcp": {"mcp_servers_config_path": "servers.json"}}
    (tmp_path / "tools.yaml").write_text(json.dumps({"tools": [entry]}))
    model = ScriptedChatModel([answer("a")])

    async def main() -> None:
        tool_set = ToolSet.load(tmp_path / "tools.yaml")
        await tool_set.setup()
        try:
            async with tool_set.open() as episode_tools:
                await generate_scenarios(
                    episode_tools.specs, num_scenarios=1, show_preview=False, generator_model=model
                )
        finally:
            await tool_set.close()

    asyncio.run(main())
    prompt = model.asked[0][0]["content"]
    assert '"name": "add"' in prompt
    assert '"type": "integer"' in prompt


def test_tools_of_requests_are_understood() -> None:
    """As a chat completion request has them."""
    model = ScriptedChatModel([answer("a")])
    asyncio.run(generate_scenarios([complete_task_tool], num_scenarios=1, show_preview=False, generator_model=model))
    assert '"name": "complete_task"' in model.asked[0][0]["content"]
    tool = MCPTool("add", "Adds.", {"type": "object"})
    assert tool.to_tool_schema() == {"type": "function", "function": tool.to_dict()}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: generate_scenarios([], show_preview=False), "neither tools nor resources"),
        (lambda: generate_scenarios([TOOL], num_scenarios=0), "num_scenarios=0 must be at least 1"),
        (lambda: generate_scenarios([TOOL]), "set OPENROUTER_API_KEY, pass generator_api_key"),
        (lambda: generate_scenarios([TOOL], generator_base_url=None), "set OPENAI_API_KEY"),
        (lambda: generate_scenarios([{"description": "?"}]), "a tool needs a name"),
        (lambda: generate_scenarios([3]), "3 of type int is no MCPTool"),
    ],
)
def test_what_cannot_work_is_said_first(call: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any model is asked."""
    for name in ("OPENROUTER_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=said):
        asyncio.run(call())


# ---- collections

COLLECTION = GeneratedScenarioCollection(GeneratedScenario(f"task {i}", 1 + i % 5) for i in range(10))


def test_a_collection_goes_through_json() -> None:
    """Also as a bare list."""
    again = GeneratedScenarioCollection.from_json(COLLECTION.to_json(indent=2))
    assert list(again) == list(COLLECTION)
    assert list(GeneratedScenarioCollection.from_json(json.dumps(COLLECTION.to_dicts()))) == list(COLLECTION)
    for text in ("{", "{}", "3", "[3]", '[{"task": "a"}]'):
        with pytest.raises(UserError):
            GeneratedScenarioCollection.from_json(text)


def test_collections_are_shuffled_split_and_filtered() -> None:
    """By a seed, at a number, by difficulty; the collection itself stays as it is."""
    assert list(COLLECTION.shuffle(1)) == list(COLLECTION.shuffle(1)) != list(COLLECTION.shuffle(2))
    train, held_out = COLLECTION.split(8)
    assert (len(train), len(held_out), held_out[0].task) == (8, 2, "task 8")
    assert {scenario.difficulty for scenario in COLLECTION.filter_by_difficulty(2, 3)} == {2, 3}
    assert COLLECTION[1:3] == [COLLECTION[1], COLLECTION[2]]
    with pytest.raises(UserError, match="train_size=11"):
        COLLECTION.split(11)


def test_a_collection_says_what_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    """Means, distribution, and the first tasks."""
    assert COLLECTION.get_summary() == {
        "total_scenarios": 10,
        "difficulty_distribution": dict.fromkeys(range(1, 6), 2),
        "avg_difficulty": 3.0,
        "avg_task_length": 6.0,
    }
    COLLECTION.preview(2, max_task_length=4)
    COLLECTION.print_difficulty_distribution()
    shown = capsys.readouterr().out
    assert "1. task… (difficulty 1/5)" in shown
    assert "5/5:   2  ██" in shown


def test_scenarios_and_resources_are_plain() -> None:
    """Difficulty is from 1 to 5; a resource keeps its type."""
    with pytest.raises(UserError, match="difficulty=6"):
        GeneratedScenario("a", 6)
    assert MCPResource.from_dict({"uri": "u", "mimeType": "t"}).to_dict()["mimeType"] == "t"
