"""Agents that play in workers of the run: real processes, a scripted engine."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from ludus.api.agent import choose_agent
from ludus.cluster.cluster import open_cluster
from ludus.cluster.status import read_status
from ludus.cluster.workers import open_workers
from ludus.compat.config import Config
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.keys import SessionKeys
from ludus.episodes.recorder import Recorder
from ludus.errors import UserError
from ludus.gateway.server import GatewayServer
from ludus.rollout.runner import EpisodeRunner, Players
from ludus.rollout.runtime import AgentRuntime
from ludus.rollout.tasks import EpisodeTask
from ludus.text.chat import ChatText

AGENT = """
import json, os, time, urllib.request
from pathlib import Path


class Agent:
    def __init__(self, note=None):
        if note == "wrong":
            raise ValueError("no such note")

    def run(self, data, base_url, api_key, **extra_kwargs):
        body = {"model": "default", "messages": [{"role": "user", "content": data["question"]}]}
        headers = {"content-type": "application/json", "authorization": f"Bearer {api_key}"}
        request = urllib.request.Request(base_url + "/chat/completions", json.dumps(body).encode(), headers)
        answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
        if data.get("waits"):
            Path(data["waits"]).write_text(str(os.getppid()))
            time.sleep(600)
        return float(answer == "four"), {"pid": os.getpid()}
"""


@pytest.fixture
def agent_file(tmp_path):
    path = tmp_path / "agent.py"
    path.write_text(AGENT)
    return path


@pytest.fixture
def config(tmp_path, agent_file):
    def make(**keys):
        agent = {"mode": "subproc", "subproc_max_workers": 2, "workers": 1}
        return Config(
            run_root=str(tmp_path / "runs"),
            workflow=f"{agent_file}:Agent",
            rollout={"agent": agent, **keys.pop("rollout", {})},
            **keys,
        )

    return make


def task(number, **row):
    data = {"question": "2+2?", **row}
    return EpisodeTask(f"g0-m{number:02d}", "g0", "row0", data, seed=number, step=1)


def play(config, tokenizer_folder, drive):
    text = ChatText.load(tokenizer_folder)

    async def main():
        engine = ScriptedEngine(lambda call: "four", text.tokenizer)
        agent_adapter = choose_agent(config)
        with AgentRuntime(Recorder(engine, text), GatewayServer(SessionKeys())) as runtime:
            async with open_cluster(config) as cluster:
                await open_workers(config, cluster, (agent_adapter, None))
                generation = config.gconfig
                runner = EpisodeRunner(
                    Players({"": agent_adapter}), runtime, config.rollout, training=generation, evaluation=generation
                )
                async with runner:
                    return await drive(runner, cluster)

    return asyncio.run(main())


def test_episodes_play_in_workers(config, tokenizer_folder):
    """An agent that is named plays in processes of a worker, against the gateway of this process."""

    async def drive(runner, cluster):
        return await asyncio.gather(*(runner.run(task(number)) for number in range(4)))

    episodes = play(config(), tokenizer_folder, drive)
    assert [episode.outcome.kind for episode in episodes] == ["ok"] * 4
    assert [episode.reward for episode in episodes] == [1.0] * 4
    pids = {episode.metrics["pid"] for episode in episodes}
    assert float(os.getpid()) not in pids and len(pids) <= 2
    assert episodes[0].spans[0].kind == "process"


def test_a_lost_worker_is_replaced_and_its_episodes_are_lost(config, tokenizer_folder, tmp_path):
    """An episode whose worker is killed ends as lost, which is none of its agent's faults; the next one plays at the
    worker's successor."""
    mark = tmp_path / "waits"
    asked = config()

    async def drive(runner, cluster):
        playing = asyncio.create_task(runner.run(task(0, waits=str(mark))))
        while not mark.exists() or not mark.read_text():  # noqa: ASYNC110  (written by another process)
            await asyncio.sleep(0.02)
        # a worker plays as soon as it is registered, a little before it is shown as ready
        while [(r.role, r.state) for r in read_status(asked.folder).roles] != [("rollout", "ready")]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        os.kill(int(mark.read_text()), signal.SIGKILL)
        return await playing, await runner.run(task(1))

    lost, after = play(asked, tokenizer_folder, drive)
    assert (lost.outcome.kind, lost.session.num_sampled_tokens > 0) == ("lost", True)
    assert "worker" in lost.outcome.reason
    assert after.outcome.kind == "ok"
    assert read_status(asked.folder) is None
    assert "SIGKILL" not in Path(asked.folder / "roles" / "rollout-0.log").read_text()


def test_an_agent_that_cannot_be_set_up_ends_the_start(config, tokenizer_folder):
    """What an agent's constructor raises in the worker is in the message here."""

    async def drive(runner, cluster):
        raise AssertionError("it does not start")

    with pytest.raises(UserError, match="no such note"):
        play(config(workflow_kwargs={"note": "wrong"}), tokenizer_folder, drive)


def test_workers_need_processes_of_their_own(caplog):
    """Workers without mode subproc do not act."""
    assert Config(rollout={"agent": {"workers": 2}}).rollout.num_workers == 0
    assert "workers=2 does not act: mode is 'inline', and it is a key of 'subproc'" in caplog.text


def test_the_rows_of_a_run_are_json(config, tokenizer_folder):
    """A row that cannot be sent fails its episode, and names the column."""

    async def drive(runner, cluster):
        return await runner.run(task(0, image=json))

    episode = play(config(), tokenizer_folder, drive)
    assert episode.outcome.kind == "failed" and "image" in episode.outcome.reason
