"""Agents with a process for each episode: what they may do, and what becomes of those that hang, crash or shout."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from ludus.agents.adapter import EpisodeContext, EpisodeInfo, current_episode
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.keys import SessionKeys
from ludus.episodes.outcome import Raised, outcome_of
from ludus.episodes.recorder import Recorder
from ludus.episodes.reward import Result
from ludus.errors import UserError
from ludus.gateway.server import GatewayServer
from ludus.processes.pool import WorkerPool
from ludus.rollout.playing import guarded
from ludus.rollout.runner import EpisodeRunner, Players
from ludus.rollout.runtime import AgentRuntime
from ludus.rollout.settings import GenerationSettings, RolloutSettings
from ludus.rollout.subproc import SubprocessAgentAdapter
from ludus.rollout.tasks import EpisodeTask
from ludus.runs.spans import span
from ludus.text.chat import ChatText
from ludus.types import Episode
from tests.rollout.agents import Broken, answer, ask, ask_with_sdk

PlayAll = Callable[..., list[Episode]]


@pytest.fixture(scope="module")
def one_process() -> Iterator[WorkerPool]:
    """A process that most tests share: importing takes most of their time."""
    with WorkerPool(1) as pool:
        yield pool


@pytest.fixture
def play_all(tokenizer_folder: Path, task: EpisodeTask, one_process: WorkerPool) -> Iterator[PlayAll]:
    """Plays the rows, all at once, each in a process; settings as keyword arguments."""
    text = ChatText.load(tokenizer_folder)
    with ExitStack() as stack:

        def play(
            agent: object,
            *rows: Mapping[str, Any],
            kwargs: Mapping[str, Any] | None = None,
            max_workers: int = 1,
            **settings: Any,
        ) -> list[Episode]:
            engine = ScriptedEngine(lambda call: "four", text.tokenizer)
            runtime = stack.enter_context(AgentRuntime(Recorder(engine, text), GatewayServer(SessionKeys())))
            generation = GenerationSettings(max_new_tokens=32)
            agents = {"mode": "subproc", "subproc_max_workers": max_workers}
            pool = one_process if max_workers == 1 else None
            runner = EpisodeRunner(
                Players({"": SubprocessAgentAdapter(agent, kwargs, max_workers=max_workers, pool=pool)}),
                runtime,
                RolloutSettings(agent=agents, **settings),
                training=generation,
                evaluation=generation,
            )
            tasks = [replace(task, episode_id=f"e{idx}", data=row) for idx, row in enumerate(rows or ({},))]

            async def run() -> list[Episode]:
                async with runner:
                    return await asyncio.gather(*map(runner.run, tasks))

            return asyncio.run(run())

        yield play


def printed(episode: Episode) -> Mapping[str, Any]:
    (process,) = [span for span in episode.spans if span.kind == "process"]
    outputs: Mapping[str, Any] = process.outputs
    return outputs


def test_a_blocking_agent_finds_the_model_in_its_environment(play_all: PlayAll) -> None:
    """`openai.OpenAI()` without arguments is enough; its turns are recorded here, and its reward is theirs."""
    (episode,) = play_all(answer)
    (turn,) = episode.session.turns
    assert episode.outcome.kind == "ok", episode.outcome
    assert episode.rewards == {turn.id: 1.0}


def test_anthropics_sdk_finds_it_too(play_all: PlayAll) -> None:
    """`anthropic.Anthropic()` without arguments reaches the same session."""

    def run(data: Mapping[str, Any]) -> float:
        with anthropic.Anthropic(max_retries=0) as client:
            messages: Any = [{"role": "user", "content": "2+2?"}]
            reply = client.messages.create(model="default", messages=messages, max_tokens=8)
        return float(reply.content[0].text == "four")  # type: ignore[union-attr]

    (episode,) = play_all(run)
    assert (episode.outcome.kind, episode.reward) == ("ok", 1.0)


def test_the_same_arguments_are_injected_as_inline(play_all: PlayAll) -> None:
    """base_url, api_key and http_client arrive; the environment names the same model."""

    async def run(data: Mapping[str, Any], base_url: str, api_key: str, http_client: Any) -> float:
        assert (base_url, api_key) == (os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])
        assert os.environ["ANTHROPIC_BASE_URL"] + "/v1" == base_url
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client) as client:
            messages: Any = [{"role": "user", "content": "2+2?"}]
            await client.chat.completions.create(model="default", messages=messages)
        return 1.0

    assert [episode.outcome.kind for episode in play_all(run, {}, {})] == ["ok", "ok"]
    assert "OPENAI_BASE_URL" not in os.environ


def test_an_agent_is_set_up_once_in_each_process_and_keeps_its_state(play_all: PlayAll) -> None:
    """A class is made once with its workflow_kwargs; a closure comes along; this process makes none."""
    made_here: list[int] = []

    class Agent:
        def __init__(self, start: int) -> None:
            made_here.append(start)
            self.count = start

        async def run(self, data: Mapping[str, Any], **extra_kwargs: Any) -> object:
            ask()
            self.count += data["step"]
            return self.count, {"made": len(made_here)}

    episodes = play_all(Agent, {"step": 1}, {"step": 1}, {"step": 1}, kwargs={"start": 10})
    assert [episode.reward for episode in episodes] == [11.0, 12.0, 13.0]
    assert {episode.metrics["made"] for episode in episodes} == {1.0}
    assert made_here == []


def test_an_instance_brings_the_state_it_had(play_all: PlayAll) -> None:
    """What an instance was given in this program is there in its process."""

    class Agent:
        def __init__(self) -> None:
            self.reward = 0.0

        async def run(self, data: Mapping[str, Any], **extra_kwargs: Any) -> object:
            ask()
            return self.reward

    agent = Agent()
    agent.reward = 0.75
    (episode,) = play_all(agent)
    assert episode.reward == 0.75


def test_an_agent_file_is_found_by_its_process(play_all: PlayAll, tmp_path: Path) -> None:
    """An import string of a file works as it does inline, with the modules beside it."""
    (tmp_path / "beside_it.py").write_text("REWARD = 0.5\n")
    (tmp_path / "far_agent.py").write_text(
        "import openai\nfrom beside_it import REWARD\n"
        "class Agent:\n"
        "    def run(self, data, **extra_kwargs):\n"
        "        with openai.OpenAI() as client:\n"
        "            client.chat.completions.create(model='default', messages=[{'role': 'user', 'content': 'x'}])\n"
        "        return REWARD\n"
    )
    (episode,) = play_all(f"{tmp_path}/far_agent.py:Agent")
    assert (episode.outcome.kind, episode.reward) == ("ok", 0.5), episode.outcome
    assert "far_agent" not in sys.modules


def test_results_numbers_and_spans_come_back(play_all: PlayAll) -> None:
    """`ludus.Result`, a mapping by completion id, what was counted and timed: as inline."""

    async def run(data: Mapping[str, Any]) -> object:
        context = current_episode()
        assert context is not None and context.info.task_id == "row0"
        context.agent_metrics.setdefault("tries", []).extend([1.0, 3.0])
        with span("tool", "add", inputs={"a": 1}) as begun:
            begun.outputs = 2
        return Result({ask(): True}, {"success": 1}, {"note": "kept"})

    (episode,) = play_all(run)
    assert episode.rewards == {episode.session.turns[0].id: 1.0}
    assert episode.metrics == {"tries": 2.0, "success": 1.0}
    assert episode.metadata == {"note": "kept"}
    assert [(item.kind, item.name, item.outputs) for item in episode.spans if item.kind == "tool"] == [
        ("tool", "add", 2)
    ]


def test_a_hanging_agent_is_killed_at_its_deadline(play_all: PlayAll) -> None:
    """Its outcome is `timeout`, with what it printed; its siblings, and those after it in its place, are played."""

    def run(data: Mapping[str, Any]) -> float:
        ask()
        if data["hang"]:
            print("now I sleep")  # noqa: T201
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
            time.sleep(600)
        return 1.0

    started_at = time.monotonic()
    rows = ({"hang": True}, {"hang": False}, {"hang": True}, {"hang": False})
    episodes = play_all(run, *rows, max_workers=2, episode_timeout_s=3.0)
    assert [episode.outcome.kind for episode in episodes] == ["timeout", "ok", "timeout", "ok"]
    assert "was still playing after" in episodes[0].outcome.reason
    assert printed(episodes[0])["stdout"] == "now I sleep\n"
    assert len(episodes[0].session.turns) == 1
    assert time.monotonic() - started_at < 30


def test_a_crash_is_a_failed_episode(play_all: PlayAll) -> None:
    """A process that dies says how and its last words; the next episode has a new one."""

    def run(data: Mapping[str, Any]) -> float:
        ask()
        if data["crash"]:
            sys.stderr.write("segmentation soon\n")
            os.kill(os.getpid(), signal.SIGSEGV)
        return 1.0

    crashed, after = play_all(run, {"crash": True}, {"crash": False})
    assert crashed.outcome.kind == "failed"
    assert "killed by SIGSEGV" in crashed.outcome.reason and "segmentation soon" in crashed.outcome.reason
    assert after.outcome.kind == "ok"


def test_a_million_lines_are_kept_within_bounds(play_all: PlayAll) -> None:
    """Output without end neither blocks the agent nor fills the record."""

    def run(data: Mapping[str, Any]) -> float:
        ask()
        for line_idx in range(1_000_000):
            os.write(1, b"line %d\n" % line_idx)
        return 1.0

    (episode,) = play_all(run)
    assert episode.outcome.kind == "ok"
    assert printed(episode)["num_bytes"] > 10_000_000
    assert len(printed(episode)["stdout"]) < 70_000
    assert printed(episode)["stdout"].endswith("line 999999\n")


def test_an_error_has_the_agents_own_frames(play_all: PlayAll) -> None:
    """The reason is the traceback in the process, without frames of ours; output of the episode is kept."""

    async def run(data: Mapping[str, Any]) -> float:
        ask()
        print("before")  # noqa: T201
        return 1.0 / data["zero"]

    (episode,) = play_all(run, {"zero": 0})
    assert episode.outcome.kind == "failed"
    assert episode.outcome.reason.endswith("division by zero")
    assert "test_subproc.py" in episode.outcome.reason and "ludus/rollout" not in episode.outcome.reason
    assert printed(episode)["stdout"] == "before\n"


def test_a_limit_met_there_is_a_truncated_episode(play_all: PlayAll) -> None:
    """The typed code of a refused request arrives with the error that it became."""

    def run(data: Mapping[str, Any]) -> float:
        ask_with_sdk()
        ask_with_sdk("again")
        return 1.0

    (episode,) = play_all(run, max_turns=1)
    assert episode.outcome.kind == "truncated", episode.outcome


def test_a_call_after_the_end_is_refused(play_all: PlayAll) -> None:
    """A thread that an agent left behind asks a session that is closed; nothing is added to any record."""

    def run(data: Mapping[str, Any]) -> object:
        import threading

        def ask_later() -> None:
            time.sleep(0.3)
            try:
                ask("late")
            except httpx.HTTPStatusError as error:
                sys.stdout.write(f"refused {error.response.status_code}\n")

        ask()
        base_url = os.environ["OPENAI_BASE_URL"]
        if data["first"]:
            later = threading.Thread(target=ask_later)
            later.start()
            later_url.append((later, base_url))
        else:
            thread, url = later_url[0]
            os.environ["OPENAI_BASE_URL"] = url
            thread.join()
        return 1.0

    later_url: list[Any] = []
    first, second = play_all(run, {"first": True}, {"first": False})
    assert [len(first.session.turns), len(second.session.turns)] == [1, 1]
    assert "refused 4" in printed(second)["stdout"]


def test_an_unknown_completion_fails_the_episode_by_name(play_all: PlayAll) -> None:
    """As inline."""

    def run(data: Mapping[str, Any]) -> object:
        ask()
        return {"chatcmpl-nobody": 1.0}

    (episode,) = play_all(run)
    assert "unknown completion id 'chatcmpl-nobody'" in episode.outcome.reason


@pytest.mark.parametrize(
    ("workflow", "kwargs", "words"),
    [
        (Broken, {}, "the index is not there"),
        ("no.such.module:Agent", {}, "there is no module 'no'"),
        (answer, {"style": "short"}, "takes no argument 'style'"),
        (answer, {"lock": Path}, "takes no argument 'lock'"),
    ],
)
def test_what_is_wrong_with_the_agent_is_told_before_anything_runs(
    workflow: object, kwargs: dict[str, Any], words: str, one_process: WorkerPool
) -> None:
    """It is set up in one process at once."""
    with pytest.raises(UserError, match=words):
        SubprocessAgentAdapter(workflow, kwargs, max_workers=2, pool=one_process)


def test_an_episode_without_time_left_is_a_timeout(one_process: WorkerPool) -> None:
    """An agent that is asked after its deadline does not begin, and has not failed."""

    async def main() -> object:
        agent_adapter = SubprocessAgentAdapter(answer, max_workers=1, pool=one_process)
        context = EpisodeContext(
            "http://here/v1", "key", None, info=EpisodeInfo("e1", "", ""), deadline_at=time.monotonic()
        )
        async with agent_adapter.place("e1"):
            return await guarded(agent_adapter, {}, context)

    ending = asyncio.run(main())
    assert isinstance(ending, Raised) and "before its agent began" in ending.trace
    assert outcome_of(ending, has_turns=False, refused=(), is_rewarded=False).kind == "timeout"


def test_an_agent_that_cannot_travel_is_refused() -> None:
    """An instance that holds a lock cannot be sent anywhere."""
    import threading

    class Agent:
        lock = None

        async def run(self, data: Mapping[str, Any]) -> float:
            return 1.0

    agent = Agent()
    agent.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(UserError, match="the agent cannot be sent to another process"):
        SubprocessAgentAdapter(agent, max_workers=1)


def test_settings_of_processes_act_with_processes_alone(caplog: pytest.LogCaptureFixture) -> None:
    """subproc_max_workers belongs to mode subproc."""
    assert RolloutSettings(agent={"subproc_max_workers": 8}) == RolloutSettings()
    assert "subproc_max_workers=8 does not act: mode is 'inline', and it is a key of 'subproc'" in caplog.text
    assert RolloutSettings(agent={"mode": "subproc", "subproc_max_workers": 8}).agent.subproc_max_workers == 8
