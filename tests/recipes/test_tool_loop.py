"""The recipe of the tool agent: its rows, its tool, its demonstrations and its reward belong together."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

import ludus
from ludus.agents.adapter import EpisodeContext, EpisodeInfo
from ludus.api.agent import choose_agent
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.episode import finish
from ludus.episodes.outcome import Returned
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.text.chat import ChatText
from ludus.types import Episode, SessionRecord

ROOT = Path(__file__).parent.parent.parent
RECIPE = ROOT / "recipes" / "tool_loop"
CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "EXPRESSION"}}\n</tool_call>'


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the recipe, which may import those beside it; none stays for other recipes of the same names."""
    monkeypatch.syspath_prepend(str(RECIPE))
    for known in ("problems", "tools"):
        monkeypatch.delitem(sys.modules, known, raising=False)
    spec = importlib.util.spec_from_file_location(f"tool_loop_{name}", RECIPE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def play(tokenizer_folder: Path, row: dict[str, object], answers: list[str]) -> tuple[Episode, SessionRecord]:
    """What the recipe's configuration makes of a row."""
    config = ludus.load_config(RECIPE / "run.yaml", ["trackers.to=[]", "gconfig.max_new_tokens=400"])
    text = ChatText.load(tokenizer_folder, chat_template="chatml-tools")
    session = Recorder(ScriptedEngine(answers, text.tokenizer, context_length=4096), text).open(SessionSpec("e1"))

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
    ("answers", "reward", "right"),
    [
        ([CALL, "It is ANSWER."], 1.0, 1.0),
        ([CALL, "It is 1ANSWER."], 0.1, 0.0),
        ([CALL.replace("EXPRESSION", "two soups"), "No idea."], 0.0, 0.0),
        (["ANSWER"], 1.0, 1.0),
        ([CALL] * 4, 0.1, 0.0),
    ],
)
def test_what_a_trajectory_is_worth(
    tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch, answers: list[str], reward: float, right: float
) -> None:
    """Right, or at least calculated; the tool's own number in the prompt earns nothing."""
    monkeypatch.chdir(ROOT)
    row = load("problems", monkeypatch).training()[0]
    expression, answer = row["extra_info"]["expression"], row["reward_model"]["ground_truth"]
    scored, record = play(
        tokenizer_folder, row, [text.replace("EXPRESSION", expression).replace("ANSWER", answer) for text in answers]
    )
    assert (scored.outcome.kind, scored.reward, scored.metrics["success"]) == ("ok", reward, right)
    assert all(turn.fork is None for turn in record.turns)


def test_demonstrations_look_like_what_is_played(tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervised start shows the same tool, in the same words, as the loop does."""
    monkeypatch.chdir(ROOT)
    warm = load("warm", monkeypatch)
    row = warm.problems.training()[0]
    shown = warm.demonstration(row)
    _, record = play(tokenizer_folder, row, ["1"])
    (tool,) = record.turns[0].tools
    wanted = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    assert json.dumps(shown["tools"][0]["function"]) == json.dumps(wanted)
    assert [message["content"] for message in shown["messages"][:2]] == [
        message.content for message in record.turns[0].messages
    ]


def test_a_fifth_is_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """No question is on both sides."""
    problems = load("problems", monkeypatch)
    questions = [{row["prompt"][1]["content"] for row in rows} for rows in (problems.held_out(), problems.training())]
    assert (len(problems.held_out()), len(problems.training())) == (120, 480) and not questions[0] & questions[1]


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("12 * (3 + 4)", "84"),
        ("-2 - 3", "-5"),
        ("2 ** 9", "error: only whole numbers"),
        ("__import__('os')", "error: only whole numbers"),
        ("1 +", "error: "),
        ("1" * 61, "error: the expression has 61 characters"),
        ("(" * 60, "error: "),
    ],
)
def test_the_tool_reads_arithmetic_alone(monkeypatch: pytest.MonkeyPatch, expression: str, text: str) -> None:
    """Whatever else a model writes is named, and never run."""
    assert asyncio.run(load("tools", monkeypatch).calculate(expression)).startswith(text)
