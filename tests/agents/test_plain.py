"""Agents in every form users give them, called with what they accept."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from ludus.agents.adapter import EpisodeContext
from ludus.agents.kinds import resolve_workflow
from ludus.errors import UserError

CONTEXT = EpisodeContext(base_url="http://gateway/v1", api_key="key", http_client=None)


class Agent:
    num_made = 0

    def __init__(self, bonus: float = 0.0) -> None:
        type(self).num_made += 1
        self.bonus = bonus

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        assert extra_kwargs == {"base_url": "http://gateway/v1", "api_key": "key", "http_client": None}
        return float(data["value"]) + self.bonus


class Sync:
    def run(self, data: dict[str, Any]) -> float:
        return 1.0


class Callable:
    async def __call__(self, data: dict[str, Any]) -> float:
        return 7.0


class NoRun:
    pass


async def function(data: dict[str, Any], base_url: str, scale: float = 1.0) -> str:
    return f"{data['value'] * scale} at {base_url}"


def play(workflow: object, kwargs: dict[str, Any] | None = None, **data: Any) -> object:
    return asyncio.run(resolve_workflow(workflow, kwargs).play(data or {"value": 1}, CONTEXT))


def test_a_class_is_made_once_with_its_kwargs() -> None:
    """A class becomes one instance, which plays every episode."""
    Agent.num_made = 0
    agent = resolve_workflow(Agent, {"bonus": 0.5})
    assert [asyncio.run(agent.play({"value": value}, CONTEXT)) for value in (1, 2)] == [1.5, 2.5]
    assert Agent.num_made == 1


def test_instances_functions_and_closures_play() -> None:
    """An instance keeps its state; a function gets only the arguments it names, and its workflow_kwargs."""
    prefix = "closed over"

    async def closure(data: dict[str, Any]) -> str:
        return prefix

    assert play(Agent(bonus=2.0)) == 3.0
    assert play(function) == "1.0 at http://gateway/v1"
    assert play(function, {"scale": 3}) == "3 at http://gateway/v1"
    assert play(closure) == prefix
    assert play(Callable()) == 7.0


def test_a_file_outside_any_package_is_imported(tmp_path: Path) -> None:
    """'path/file.py:Name' works from anywhere, and the modules beside the file can be imported by it."""
    (tmp_path / "beside_my_agent.py").write_text("VALUE = 41\n")
    (tmp_path / "my_agent_file.py").write_text(
        "import beside_my_agent\n\nasync def act(data):\n    return beside_my_agent.VALUE + data['value']\n"
    )
    before = list(sys.path)
    try:
        assert play(f"{tmp_path}/my_agent_file.py:act") == 42
    finally:
        sys.path[:] = before


def test_every_episode_gets_its_own_copy_of_the_row() -> None:
    """An agent that changes its row changes nobody else's."""

    async def greedy(data: dict[str, Any]) -> Any:
        data["items"].append(1)
        return data["items"]

    row = {"items": [0]}
    assert play(greedy, **row) == [0, 1]
    assert row == {"items": [0]}


def test_a_missing_column_is_named_with_those_there_are() -> None:
    """Reading a column that the row lacks says which it has, and the nearest."""

    async def reader(data: dict[str, Any]) -> Any:
        return data["anwser"]

    with pytest.raises(KeyError, match=r"no column 'anwser'; did you mean 'answer'.*question"):
        play(reader, question="2+2", answer=4)


@pytest.mark.parametrize(
    ("workflow", "kwargs", "message"),
    [
        (None, {}, "no workflow was given"),
        (3, {}, "the workflow is 3 of type int"),
        (NoRun, {}, "the workflow NoRun has no method `run`"),
        (Sync, {}, "Sync.run must be async"),
        (Agent, {"bonsu": 1}, "cannot be made with workflow_kwargs={'bonsu': 1}"),
        (Agent(), {"bonus": 1}, "cannot act on an instance of Agent"),
        (function, {"scael": 1}, "takes no argument 'scael'.*it takes: base_url, scale"),
        ("ludus.errors:UserEror", {}, "has no 'UserEror'; did you mean 'UserError'"),
        ("no_such_package.mod:Agent", {}, "there is no module 'no_such_package'"),
        ("no/such/file.py:Agent", {}, "there is no file 'no/such/file.py'"),
        ("nothing", {}, "is no import string"),
    ],
)
def test_what_is_no_agent_is_refused_by_name(workflow: object, kwargs: dict[str, Any], message: str) -> None:
    """Every other thing is refused with a UserError that names what was got."""
    with pytest.raises(UserError, match=message):
        resolve_workflow(workflow, kwargs)
