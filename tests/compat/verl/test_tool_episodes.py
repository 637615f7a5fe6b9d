"""Tools that hang, break or die in the middle of a run: the episode has its outcome, its siblings play on."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ludus.compat.config import Config
from ludus.compat.verl.adapter import from_loop
from ludus.compat.verl.settings import MultiTurnSettings, RewardSettings
from ludus.compat.verl.tool_loop import ToolAgentLoop
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.keys import SessionKeys
from ludus.episodes.recorder import Recorder
from ludus.gateway.server import GatewayServer
from ludus.rollout.runner import EpisodeRunner, Players
from ludus.rollout.runtime import AgentRuntime
from ludus.rollout.settings import GenerationSettings, RolloutSettings
from ludus.rollout.tasks import EpisodeTask
from ludus.text.chat import ChatText
from ludus.types import Call, Episode
from tests.compat.verl.conftest import configured

FUNCTIONS = """
import os
from ludus.agents.tools.function import function_tool


@function_tool
def add(a: int, b: int) -> int:
    return a + b


@function_tool
def spin() -> str:
    while True:
        pass


@function_tool
def crash() -> str:
    os._exit(9)
"""
MCP_SERVER = Path(__file__).parents[2] / "agents" / "tools" / "mcp_server.py"


@pytest.fixture
def runtime(tokenizer_folder: Path) -> Iterator[Any]:
    """Plays one episode for each script of answers, all at once, with the tools of a plan."""
    text = ChatText.load(tokenizer_folder, chat_template="chatml-tools")
    with ExitStack() as stack:

        def play(plan: Config, scripts: Sequence[Sequence[str]]) -> list[Episode]:
            def answer(call: Call) -> str:
                asked = text.tokenizer.decode(call.prompt_ids)
                return scripts[int(asked.split("Script ")[1].split(".")[0])][asked.count("<tool_response>")]

            engine = ScriptedEngine(answer, text.tokenizer, context_length=4096)
            runtime = stack.enter_context(AgentRuntime(Recorder(engine, text), GatewayServer(SessionKeys())))
            generation = GenerationSettings()
            runner = EpisodeRunner(
                Players({"": from_loop(ToolAgentLoop, {}, plan)}),
                runtime,
                RolloutSettings(episode_timeout_s=60),
                training=generation,
                evaluation=generation,
            )

            async def run() -> list[Episode]:
                async with runner:
                    return await asyncio.gather(*(runner.run(task(idx)) for idx in range(len(scripts))))

            return asyncio.run(run())

        yield play


def task(idx: int) -> EpisodeTask:
    row = {"prompt": [{"role": "user", "content": f"Script {idx}."}], "agent_name": "tool_agent"}
    return EpisodeTask(f"e{idx}", "g", "row0", row, seed=idx, step=1)


def plan_of(folder: Path, **turns: Any) -> Config:
    (folder / "one.py").write_text("def compute_score(**given):\n    return 1.0\n")
    return configured(
        multi_turn=MultiTurnSettings(**turns),
        reward=RewardSettings(custom_reward_function={"path": str(folder / "one.py")}),
    )


def says(name: str, **arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def observed(episode: Episode) -> list[str]:
    """What the tools answered."""
    messages = episode.session.turns[-1].messages
    return [message.content or "" for message in messages if message.role == "tool"]


def test_functions_that_hang_or_crash_cost_their_call_alone(tmp_path: Path, runtime: Any) -> None:
    """Both become observations, the agents that called them go on, and so does the sibling."""
    (tmp_path / "bad_functions.py").write_text(FUNCTIONS)
    plan = plan_of(
        tmp_path,
        function_tool_path=str(tmp_path / "bad_functions.py"),
        tool_timeout_s=1.0,
        max_tool_response_length=None,
    )
    hung, crashed, sibling = runtime(
        plan, [[says("spin"), "a"], [says("crash"), says("add", a=2, b=2), "b"], [says("add", a=1, b=1), "c"]]
    )
    assert [episode.outcome.kind for episode in (hung, crashed, sibling)] == ["ok"] * 3
    assert observed(hung) == ["Error: the tool 'spin' did not answer within 1.0 s"]
    first, second = observed(crashed)
    assert "the process of the call ended" in first and second == "4"
    assert observed(sibling) == ["2"]
    assert hung.metrics["tools/num_errors"] == 1 and [span.error is None for span in hung.spans] == [False, True]


def test_an_mcp_server_that_dies_costs_its_open_calls_alone(tmp_path: Path, runtime: Any) -> None:
    """The same server is there again for the next call."""
    servers = {"tests": {"command": sys.executable, "args": [str(MCP_SERVER)]}}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    entry = {"config": {"type": "mcp"}, "mcp": {"mcp_servers_config_path": "servers.json"}}
    (tmp_path / "tools.yaml").write_text(json.dumps({"tools": [entry]}))
    plan = plan_of(tmp_path, tool_config_path=str(tmp_path / "tools.yaml"), max_tool_response_length=None)
    (killer,) = runtime(plan, [[says("die"), says("add", numbers=[3, 4]), "a"]])
    first, second = observed(killer)
    assert killer.outcome.kind == "ok"
    assert first.startswith("Error: the MCP server 'tests'") and second == "7 (none)"


def test_a_run_whose_tools_cannot_start_says_so_before_it_plays(tmp_path: Path, runtime: Any) -> None:
    """No episode fails one by one for what is wrong with all."""
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"gone": {"command": "no-such-program"}}}))
    entry = {"config": {"type": "mcp"}, "mcp": {"mcp_servers_config_path": "servers.json"}}
    (tmp_path / "tools.yaml").write_text(json.dumps({"tools": [entry]}))
    plan = plan_of(tmp_path, tool_config_path=str(tmp_path / "tools.yaml"))
    with pytest.raises(ValueError, match="the MCP server 'gone' cannot be reached"):
        runtime(plan, [["a"]])
