"""One episode of a queue agent on written answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ludus.agents.kinds import resolve_workflow
from ludus.compat.config import Config
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.keys import SessionKeys
from ludus.episodes.recorder import Recorder
from ludus.gateway.server import GatewayServer
from ludus.rollout.runner import EpisodeRunner, Players
from ludus.rollout.runtime import AgentRuntime
from ludus.rollout.settings import GenerationSettings, RolloutSettings
from ludus.rollout.tasks import EpisodeTask
from ludus.text.chat import ChatText
from ludus.types import Episode

ROW = {"query_id": "q1", "prompt": "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n", "task": "math"}


@dataclass(frozen=True)
class ReplayResult:
    episode: Episode
    engine: ScriptedEngine
    text: ChatText


@pytest.fixture
def text(tokenizer_folder: Path) -> ChatText:
    return ChatText.load(tokenizer_folder)


@pytest.fixture
def play(text: ChatText) -> Iterator[Callable[..., ReplayResult]]:
    """Plays one episode: agent, answers, row, workflow_kwargs; settings of the rollout as keyword arguments."""
    with ExitStack() as stack:

        def run(agent: Any, answers: Any, row: Any = None, kwargs: Any = None, **settings: Any) -> ReplayResult:
            engine = ScriptedEngine(answers, text.tokenizer)
            runtime = stack.enter_context(AgentRuntime(Recorder(engine, text), GatewayServer(SessionKeys())))
            generation = GenerationSettings(max_new_tokens=32)
            agent_adapter = resolve_workflow(agent, kwargs, kinds=Config.agent_kinds)
            runner = EpisodeRunner(
                Players({"": agent_adapter}),
                runtime,
                RolloutSettings(**settings),
                training=generation,
                evaluation=generation,
            )

            async def enter_and_run() -> Episode:
                async with runner:
                    return await runner.run(EpisodeTask("e1", "g1", "row0", row or ROW, seed=5, step=1))

            return ReplayResult(asyncio.run(enter_and_run()), engine, text)

        yield run
