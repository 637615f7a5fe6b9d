"""An agent runtime with written answers behind it, and a way to play one episode in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ludus.agents.kinds import resolve_workflow
from ludus.engines.scripted import Answers, ScriptedEngine
from ludus.episodes.keys import SessionKeys
from ludus.episodes.recorder import Recorder
from ludus.gateway.server import GatewayServer
from ludus.rollout.runner import EpisodeRunner, Players
from ludus.rollout.runtime import AgentRuntime
from ludus.rollout.settings import GenerationSettings, RolloutSettings
from ludus.rollout.subproc import SubprocessAgentAdapter
from ludus.rollout.tasks import EpisodeTask
from ludus.text.chat import ChatText
from ludus.types import Episode

Play = Callable[..., Episode]


@pytest.fixture
def task() -> EpisodeTask:
    return EpisodeTask("e1", "g1", "row0", {"question": "2+2"}, seed=5, step=1)


@pytest.fixture
def make_runner(tokenizer_folder: Path) -> Iterator[Callable[..., tuple[EpisodeRunner, ScriptedEngine]]]:
    """Makes a runner for an agent on written answers; settings as keyword arguments."""
    text = ChatText.load(tokenizer_folder)
    with ExitStack() as stack:

        def make(
            agent: object,
            answers: Answers = lambda call: "four",
            *,
            engine_options: dict[str, Any] | None = None,
            kinds: Mapping[str, str] | None = None,
            **settings: Any,
        ) -> tuple[EpisodeRunner, ScriptedEngine]:
            engine = ScriptedEngine(answers, text.tokenizer, **(engine_options or {}))
            runtime = stack.enter_context(AgentRuntime(Recorder(engine, text), GatewayServer(SessionKeys())))
            generation = GenerationSettings(max_new_tokens=32)
            adapter = agent if isinstance(agent, SubprocessAgentAdapter) else resolve_workflow(agent, kinds=kinds)
            runner = EpisodeRunner(
                Players({"": adapter}),
                runtime,
                RolloutSettings(**settings),
                training=generation,
                evaluation=generation,
            )
            return runner, engine

        yield make


@pytest.fixture
def play(make_runner: Callable[..., tuple[EpisodeRunner, ScriptedEngine]], task: EpisodeTask) -> Play:
    """Plays one episode of an agent."""

    def run(agent: object, *args: Any, **options: Any) -> Episode:
        runner, _ = make_runner(agent, *args, **options)

        async def enter_and_run() -> Episode:
            async with runner:
                return await runner.run(task)

        return asyncio.run(enter_and_run())

    return run
