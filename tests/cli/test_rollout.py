"""`ludus rollout`: a user's own agent file, with a local model and with one behind a URL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.episodes import Episodes
from ludus.episodes.recorder import Recorder
from ludus.gateway.app import GatewayOptions
from ludus.gateway.server import GatewayServer
from ludus.text.chat import ChatText


@pytest.fixture
def outside_url(tokenizer_folder: Path) -> Iterator[str]:
    """Somebody else's server: scripted answers behind an OpenAI-compatible URL."""
    text = ChatText.load(tokenizer_folder)
    recorder = Recorder(ScriptedEngine(lambda call: "seven", text.tokenizer), text)
    episodes = Episodes(recorder)
    options = GatewayOptions(open_mode=episodes.open_for_key)
    with GatewayServer(episodes.keys, options) as server:
        yield f"{server.base_url}/v1"


def test_an_agent_is_shown_turn_by_turn(
    agent_file: Path, rows_file: Path, tiny_model_folder: Path, ludus: Callable[..., Any]
) -> None:
    """Each turn has its tokens, how many would be trained, the mean logprob, the reward and the advantage."""
    command = (
        "rollout",
        f"{agent_file}:Agent",
        "--data",
        rows_file,
        "--model",
        tiny_model_folder,
        "--limit",
        1,
        "--n",
        2,
    )
    ended = ludus(*command)
    assert ended.code == 0, ended.err
    for text in ("row00000-m01", "reply", "tokens", "trained", "logprob", "advantage", "2 episodes", "success 100.0%"):
        assert text in ended.out, text
    lines = [json.loads(line) for line in ludus(*command, "--json").out.splitlines()]
    assert [line["episode"] for line in lines] == ["row00000-m00", "row00000-m01"]
    for turn in (turn for line in lines for turn in line["turns"]):
        assert turn["num_tokens"] == len(turn["tokens"]) > 0 and turn["mean_logprob"] < 0
        assert (turn["num_trained"] == 0) == (turn["advantage"] is None)


def test_one_episode_alone_has_its_return(
    agent_file: Path, rows_file: Path, tiny_model_folder: Path, ludus: Callable[..., Any]
) -> None:
    """Without others to compare with, a turn's tokens count as trained with the return itself; greedy ones never."""
    command = [
        "rollout",
        f"{agent_file}:Agent",
        "--data",
        rows_file,
        "--model",
        tiny_model_folder,
        "--limit",
        1,
        "--json",
    ]
    (first, second) = json.loads(ludus(*command).last)["turns"]
    assert first["advantage"] == pytest.approx(first["reward"] + second["reward"])
    assert first["num_trained"] == first["num_tokens"]
    (greedy, _) = json.loads(ludus(*command, "gconfig.temperature=0").last)["turns"]
    assert greedy["num_trained"] == 0 and "greedy" in greedy["note"]


def test_an_outside_model_is_shown_as_far_as_it_is_known(
    agent_file: Path, rows_file: Path, outside_url: str, ludus: Callable[..., Any]
) -> None:
    """Behind a URL there are replies, counts, logprobs and rewards, and nothing to train."""
    command = ("rollout", f"{agent_file}:Agent", "--data", rows_file, "--url", outside_url, "--api-key", "k", "--json")
    lines = [json.loads(line) for line in ludus(*command).out.splitlines()]
    assert len(lines) == 4 and all(line["outcome"] == "ok" for line in lines)
    for line in lines:
        assert [turn["reply"] for turn in line["turns"]] == ["seven", "seven"]
        assert all(turn["num_trained"] is None and turn["num_tokens"] > 0 for turn in line["turns"])
        assert all(turn["mean_logprob"] < 0 and turn["reward"] == 0.4 for turn in line["turns"])


@pytest.mark.parametrize("where", ["local", "outside"])
def test_failed_episodes_are_shown_and_exit_with_1(
    where: str, agent_file: Path, rows_file: Path, tiny_model_folder: Path, outside_url: str, ludus: Callable[..., Any]
) -> None:
    """An agent that raises is an outcome with its traceback; when nothing else happened, the exit code is 1."""
    place = ("--model", tiny_model_folder) if where == "local" else ("--url", outside_url)
    ended = ludus("rollout", f"{agent_file}:fails", "--data", rows_file, *place)
    assert ended.code == 1
    assert "failed" in ended.out and "no such question" in ended.out


@pytest.mark.parametrize("where", ["local", "outside"])
def test_an_agent_plays_in_processes_of_its_own(
    where: str, agent_file: Path, rows_file: Path, tiny_model_folder: Path, outside_url: str, ludus: Callable[..., Any]
) -> None:
    """rollout.agent.mode=subproc shows the same, with a model of ours and with one behind a URL."""
    place = ("--model", tiny_model_folder) if where == "local" else ("--url", outside_url)
    agents = ("rollout.agent.mode=subproc", "rollout.agent.subproc_max_workers=2")
    ended = ludus("rollout", f"{agent_file}:Agent", "--data", rows_file, "--limit", 2, "--json", *place, *agents)
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert [line["outcome"] for line in lines] == ["ok", "ok"], ended.err


def test_a_missing_agent_is_named(rows_file: Path, tiny_model_folder: Path, ludus: Callable[..., Any]) -> None:
    """The message says which file or name was not found."""
    ended = ludus("rollout", "nowhere.py:Agent", "--data", rows_file, "--model", tiny_model_folder)
    assert ended.code == 2 and "there is no file 'nowhere.py'" in ended.err


def test_discarded_episodes_are_noted_as_training_accounts_for_them(
    agent_file: Path, rows_file: Path, tiny_model_folder: Path, ludus: Callable[..., Any]
) -> None:
    """A turn of an episode that failed or was rejected is masked for that reason, and has no advantage."""
    place = ("--data", rows_file, "--model", tiny_model_folder, "--limit", 3, "--json")
    lines = [json.loads(line) for line in ludus("rollout", f"{agent_file}:ends_differently", *place).out.splitlines()]
    turns = {line["outcome"]: line["turns"][0] for line in lines}
    assert turns["failed"]["note"].startswith("failed") and turns["rejected"]["note"].startswith("rejected")
    assert all(turns[kind]["num_trained"] == 0 and turns[kind]["advantage"] is None for kind in ("failed", "rejected"))
    assert turns["ok"]["num_trained"] == turns["ok"]["num_tokens"]
    pair = ludus("rollout", f"{agent_file}:ends_differently", *place[:-3], "--limit", 1, "--n", 2, "--json").out
    assert all(json.loads(line)["turns"][0]["note"].startswith("failed") for line in pair.splitlines())


def test_a_hanging_agent_behind_a_url_is_a_timeout(
    agent_file: Path, rows_file: Path, outside_url: str, ludus: Callable[..., Any]
) -> None:
    """One agent that hangs is an outcome; its siblings are shown as they ended, before it."""
    place = ("--data", rows_file, "--url", outside_url, "--json", "rollout.episode_timeout_s=4")
    ended = ludus("rollout", f"{agent_file}:hangs_on_the_first", *place)
    outcomes = [json.loads(line)["outcome"] for line in ended.out.splitlines()]
    assert outcomes == ["ok", "ok", "ok", "timeout"] and ended.code == 0
    assert "rollout.episode_timeout_s=4" in ended.out


def test_an_unreachable_url_is_named(agent_file: Path, rows_file: Path, ludus: Callable[..., Any]) -> None:
    """Where nobody listens, the reason says which URL it was."""
    url = "http://127.0.0.1:9/v1"
    ended = ludus("rollout", f"{agent_file}:asks", "--data", rows_file, "--limit", 1, "--url", url, "--json")
    assert ended.code == 1 and f"{url} cannot be reached" in json.loads(ended.last)["reason"]


def test_limits_act_on_an_outside_model_or_are_named(
    agent_file: Path, rows_file: Path, outside_url: str, ludus: Callable[..., Any]
) -> None:
    """Calls are counted; tokens and sampling, over which Ludus has no say there, are named in a warning."""
    place = ("--data", rows_file, "--limit", 1, "--url", outside_url, "--json")
    (line,) = ludus("rollout", f"{agent_file}:talks_on", *place, "rollout.max_turns=3").out.splitlines()
    assert json.loads(line)["outcome"] == "truncated" and len(json.loads(line)["turns"]) == 3
    for setting in ("rollout.max_tokens=5", "gconfig.temperature=0.5"):
        ended = ludus("rollout", f"{agent_file}:asks", *place, setting)
        assert ended.code == 0 and f"these keys do not act: {setting.partition('=')[0]} (" in ended.err


@pytest.mark.parametrize("where", ["local", "outside"])
def test_an_interrupt_is_one_line_and_code_130(
    where: str, agent_file: Path, rows_file: Path, tiny_model_folder: Path, outside_url: str, ludus: Callable[..., Any]
) -> None:
    """Ctrl-C while agents play leaves no traceback."""
    place = ("--model", tiny_model_folder) if where == "local" else ("--url", outside_url)
    ended = ludus("rollout", f"{agent_file}:is_interrupted", "--data", rows_file, "--limit", 1, *place)
    assert (ended.code, ended.err.strip(), ended.out) == (130, "interrupted", "")
