"""Plays rows with agent loops over a scripted engine: what the runner does, without a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ludus.agents.adapter import EpisodeContext, EpisodeInfo
from ludus.compat.config import Config, InlineSettings, LoopSettings, RolloutSettings
from ludus.compat.verl.adapter import from_loop
from ludus.compat.verl.settings import RewardSettings
from ludus.engines.scripted import Answers, ScriptedEngine
from ludus.episodes.episode import finish
from ludus.episodes.limits import NO_LIMITS, Limits
from ludus.episodes.outcome import Returned
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.import_strings import import_object
from ludus.text.chat import ChatText
from ludus.types import Episode, Sampling, SessionRecord, Span


def configured(reward: RewardSettings | None = None, **rollout: Any) -> Config:
    """A run of loops; keys below `rollout`, and those of its agent."""
    agent = {name: rollout.pop(name) for name in LoopSettings.model_fields if name in rollout}
    return Config(rollout=RolloutSettings(agent=InlineSettings(**agent), **rollout), reward=reward or RewardSettings())


@dataclass(frozen=True)
class ReplayResult:
    """One episode of a loop."""

    scored: Episode
    record: SessionRecord
    spans: tuple[Span, ...]
    engine: ScriptedEngine

    @property
    def texts(self) -> list[str | None]:
        return [turn.reply.content for turn in self.record.turns]


@dataclass
class Player:
    """Makes an agent adapter of whatever is an agent loop, and plays rows with it, one after the other."""

    text: ChatText
    sampling: Sampling = field(default_factory=lambda: Sampling(seed=1))

    def __call__(
        self,
        workflow: object,
        row: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        answers: Answers,
        *,
        plan: Config | None = None,
        kwargs: Mapping[str, Any] | None = None,
        limits: Limits = NO_LIMITS,
        context_length: int = 4096,
    ) -> ReplayResult:
        rows = [row] if isinstance(row, Mapping) else list(row)
        engine = ScriptedEngine(answers, self.text.tokenizer, context_length=context_length)
        recorder = Recorder(engine, self.text)

        async def play() -> ReplayResult:
            loop = import_object(workflow) if isinstance(workflow, str) else workflow
            agent_adapter = from_loop(loop, kwargs or {}, plan)
            await agent_adapter.setup()
            try:
                for idx, data in enumerate(rows):
                    session = recorder.open(SessionSpec(f"e{idx}", limits=limits, sampling=self.sampling))
                    context = EpisodeContext("", "", None, session, EpisodeInfo(f"e{idx}", "row0", "g0"))
                    with context.entered():
                        returned = await agent_adapter.play(data, context)
                    record = await session.aclose("done")
                episode = finish(SessionSpec(), record, Returned(returned), started_at=0.0)
                return ReplayResult(episode, record, context.spans.snapshot(), engine)
            finally:
                await agent_adapter.close()

        return asyncio.run(play())


@pytest.fixture
def text(tokenizer_folder: Path) -> ChatText:
    return ChatText.load(tokenizer_folder, chat_template="chatml-tools")


@pytest.fixture
def play(text: ChatText) -> Callable[..., ReplayResult]:
    return Player(text)
