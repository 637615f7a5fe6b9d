"""The GSM8K recipe: rows of `ludus data gsm8k`, its tool, its demonstrations and the verifier belong together."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import ludus
from ludus.agents.adapter import EpisodeContext, EpisodeInfo
from ludus.api.agent import choose_agent
from ludus.cli.data import gsm8k_rows
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.episode import finish
from ludus.episodes.outcome import Returned
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.text.chat import ChatText
from ludus.types import Episode, SessionRecord

ROOT = Path(__file__).parent.parent.parent
RECIPE = ROOT / "recipes" / "gsm8k"
PROBLEM = {"question": "Half of 144?", "answer": "Half of 144 is <<144/2=72>>72.\n#### 72"}


def says(answer: str) -> str:
    arguments = {"name": "calc_gsm8k_reward", "arguments": {"answer": answer}}
    return f"<tool_call>\n{json.dumps(arguments)}\n</tool_call>"


def play(tokenizer_folder: Path, answers: list[str]) -> tuple[Episode, SessionRecord]:
    """What the recipe's configuration makes of a row."""
    limits = ["gconfig.max_new_tokens=1000", "rollout.response_length=3000", "rollout.multi_turn.max_assistant_turns=3"]
    config = ludus.load_config(RECIPE / "run.yaml", limits)
    text = ChatText.load(tokenizer_folder, chat_template="chatml-tools")
    session = Recorder(ScriptedEngine(answers, text.tokenizer, context_length=8192), text).open(SessionSpec("e1"))
    (row,) = gsm8k_rows([PROBLEM], "train", "tool_agent")

    async def run() -> object:
        agent_adapter = choose_agent(config, rows=[row])
        await agent_adapter.setup()
        try:
            context = EpisodeContext("", "", None, session, EpisodeInfo("e1", "row0", "g1"))
            with context.entered():
                return await agent_adapter.play(row, context)
        finally:
            await agent_adapter.close()

    returned = asyncio.run(run())
    record = session.snapshot()
    return finish(SessionSpec(), record, Returned(returned), started_at=0.0), record


@pytest.mark.parametrize(
    ("answers", "reward"),
    [
        ([says("72"), "#### 72"], 1.0),
        ([says("70"), "Then it is " + says("72"), "So: #### $72."], 1.0),
        ([says("72"), "#### 71"], 0.2),
        ([says("many"), "#### 71"], 0.1),
        ([says("71"), "No idea."], 0.1),
        (["#### 72"], 1.0),
        (["72"], 0.0),
    ],
)
def test_the_final_answer_is_what_counts(
    tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch, answers: list[str], reward: float
) -> None:
    """Right after '####' is 1; asking the tool about a number, and such an end, are the form of it."""
    monkeypatch.chdir(ROOT)
    scored, record = play(tokenizer_folder, answers)
    assert (scored.outcome.kind, scored.reward, scored.metrics["success"]) == (
        "ok",
        pytest.approx(reward),
        float(reward == 1.0),
    )
    told = [message.content for message in record.turns[-1].messages if message.role == "tool"]
    assert len(told) == len(answers) - 1 and (not told or "reward=" in str(told[0]))


def test_demonstrations_look_like_what_is_played(tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervised start shows the same tool, in the same words, and ends as the verifier asks."""
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("gsm8k_warm", RECIPE / "warm.py")
    assert spec is not None and spec.loader is not None
    warm: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(warm)
    tools = [entry["tool_schema"] for entry in warm.yaml.safe_load((RECIPE / "tools.yaml").read_text())["tools"]]
    (row,) = gsm8k_rows([PROBLEM], "train", "tool_agent")
    shown = warm.demonstration(row, tools)
    _, record = play(tokenizer_folder, [says("72"), "#### 72"])
    (tool,) = record.turns[0].tools
    wanted = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    assert json.dumps(shown["tools"][0]["function"]) == json.dumps(wanted)
    *asked, steps, told, answer = shown["messages"]
    assert [message["content"] for message in asked] == [message.content for message in record.turns[0].messages]
    assert (steps["content"], answer["content"]) == ("Half of 144 is 72.", "#### 72")
    assert told["content"] == record.turns[1].messages[-1].content
