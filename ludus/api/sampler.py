"""Answers with a run's models by name, for the run's page; answers are recorded in a run inside the run's folder.

Knows: where a run's weights are, sessions, the past of a turn.  Knows not: HTTP, pages, other runs.
Invariants: the run itself is only read; the weights of a step are rounded exactly as they were published; a branch goes
on from the exact tokens of its turn's past, unless the template no longer renders those; nothing is loaded that does
not fit into memory.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.api.cards.start import planned
from ludus.api.elsewhere import ask_elsewhere
from ludus.api.opened_weights import Opened, OpenedWeights
from ludus.api.step_weights import load_step, load_weights
from ludus.config import Config
from ludus.engines.lease import ComputeLease
from ludus.engines.local.settings import LocalSettings
from ludus.episodes.archive import RunArchive
from ludus.episodes.completion import OnDelta
from ludus.episodes.episodes import Episodes
from ludus.episodes.handle import Handle
from ludus.episodes.outcome import Cancelled, Reported
from ludus.episodes.recall import Recall
from ludus.episodes.recorder import Recorder
from ludus.episodes.session import Session
from ludus.episodes.spec import SessionSpec
from ludus.errors import AgentError, BackendError, UserError
from ludus.loop.checkpoint import Checkpoint, checkpoints
from ludus.rewards.providers import Endpoint
from ludus.runs.folder import config_text, read_config, trained_model
from ludus.runs.store import RunStore
from ludus.runs.watch.branches import answer_json, changed
from ludus.runs.watch.outline import state_of
from ludus.runs.watch.question import FOLDER, Json, Past, Question
from ludus.text.chat import ChatText
from ludus.text.parsers.base import ContentDelta, Delta, ReasoningDelta, ToolCallDelta
from ludus.types import Call, ChatRequest, Episode, Message, Sampled, SessionRecord, Turn

if TYPE_CHECKING:
    from ludus.models.load import LoadedModel

logger = logging.getLogger(__name__)

IDLE_S = 600.0  # somebody who compares answers comes back within minutes; loading again takes seconds
_ALTERNATIVES = 5  # of each token, for the page
_NEEDED = ("model", "engine", "trainer", "gconfig", "seed")
_BASE, _FINAL = "base", "final"


class RunSampler:
    """The models of one run. Used on one event loop."""

    def __init__(self, run: Path, elsewhere: Mapping[str, Endpoint] | None = None) -> None:
        """elsewhere: further models, by name, that are served elsewhere. None: there are none.

        Raises UserError if the run's configuration cannot be read.
        """
        self._run = run
        self._elsewhere = dict(elsewhere or {})
        self._config = _config(run)
        self._opening_store = threading.Lock()
        self._store: RunStore | None = None
        """None: nothing was asked yet."""
        self._opened = OpenedWeights[str](
            self._config.engine, lease=ComputeLease(), seed=self._config.seed, on_close=self._end_sessions
        )
        self._episodes: dict[Opened, Episodes] = {}

    def __repr__(self) -> str:
        return f"RunSampler({str(self._run)!r}, {self._opened})"

    async def answer(self, question: Question) -> AsyncIterator[Json]:
        """As `Sampler.answer`. Raises AgentError, UserError or BackendError if there can be no answer."""
        if question.model in self._elsewhere:
            episode = await self._ask_elsewhere(self._elsewhere[question.model], question)
            yield {"done": True, **answer_json(episode, episode.session.turns[-1], None)}
            return
        opened = await self._open(question.model)
        episodes = self._episodes[opened]
        deltas: asyncio.Queue[Json | None] = asyncio.Queue()

        def on_delta(_: int, delta: Delta) -> None:
            deltas.put_nowait({"delta": _text(delta)})

        async def complete() -> tuple[Handle, Turn]:
            try:
                if question.past is not None:
                    return await self._branch(opened.recorder, episodes, question, question.past, on_delta)
                return await self._chat(episodes, question, on_delta)
            finally:
                deltas.put_nowait(None)

        task = asyncio.create_task(complete(), name=f"ludus-answer-{question.session}")
        try:
            while (event := await deltas.get()) is not None:
                yield event
            handle, turn = await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        episode = handle.episode or episodes.episode_so_far(handle)
        yield {"done": True, **answer_json(episode, turn, opened.text.tokenizer.decode)}

    async def sweep(self) -> None:
        """From time to time, close models that were not used lately; runs until cancelled."""
        while True:
            await asyncio.sleep(IDLE_S / 20)
            await self._opened.close_idle(IDLE_S)

    async def close(self) -> None:
        """End all chats; what was answered is kept."""
        await self._opened.close()
        if self._store is not None:
            self._store.close()

    # ---- one answer

    async def _branch(
        self, recorder: Recorder, episodes: Episodes, question: Question, past: Past, on_delta: OnDelta
    ) -> tuple[Handle, Turn]:
        record, turn = await asyncio.to_thread(self._turn, past)
        of_turns = {each.node: each for each in record.turns}
        before = [of_turns[node] for node in record.path_nodes(turn.node)[:-1] if node in of_turns]
        spec = _spec(question)
        tried = recorder.open(replace(spec, id=f"{spec.id}-tried", recall=_Past(record)))
        try:
            await _relive(tried, before)
        except _OtherPastError:
            logger.info("branch.rendered_anew session=%s", spec.id)
            before = []
        recall = _Past(record)
        handle, _ = episodes.open(replace(spec, recall=recall))
        try:
            await _relive(handle.session, before)
            recall.is_over = True
            sampling = replace(turn.sampling, seed=None, top_logprobs=max(turn.sampling.top_logprobs, _ALTERNATIVES))
            request = replace(_asked(changed(turn, past.edit)), sampling=sampling)
            (answer,) = await handle.session.complete(request, on_delta)
        except BaseException as error:
            await episodes.end(handle, Cancelled(str(error) or "nobody waits for it any more"))
            raise
        await episodes.end(handle, Reported("ok"))
        return handle, answer

    async def _chat(self, episodes: Episodes, question: Question, on_delta: OnDelta) -> tuple[Handle, Turn]:
        handle = episodes.find(question.session)
        if handle is None:
            handle, _ = episodes.open(_spec(question))
        (answer,) = await handle.session.complete(self._said(question), on_delta)
        return handle, answer

    async def _ask_elsewhere(self, endpoint: Endpoint, question: Question) -> Episode:
        """Each answer is an episode of its own, which includes the chat so far."""
        spec = _spec(question)
        if question.past is None:
            request = self._said(question)
            spec = replace(spec, id=f"{spec.id}-{len(question.messages):03d}")
        else:
            _, turn = await asyncio.to_thread(self._turn, question.past)
            request = _asked(changed(turn, question.past.edit))
        store = await asyncio.to_thread(self._writable)
        episode = await ask_elsewhere(endpoint, request, spec)
        await asyncio.to_thread(store.add_episode, episode)
        return episode

    def _said(self, question: Question) -> ChatRequest:
        generation = replace(self._config.gconfig.sampling(), max_new_tokens=question.max_tokens)
        if question.temperature is not None:
            generation = replace(generation, temperature=question.temperature)
        return ChatRequest(
            messages=tuple(Message(each.role, each.content) for each in question.messages),
            sampling=replace(generation, top_logprobs=_ALTERNATIVES),
        )

    def _turn(self, past: Past) -> tuple[SessionRecord, Turn]:
        with closing(RunStore.look(self._run, checks=False)) as store:
            session = store.episode_at(past.num).session
        for turn in session.turns:
            if turn.id == past.turn:
                return session, turn
        raise UserError(f"the episode has no turn {past.turn!r}")

    # ---- models

    async def _open(self, name: str) -> Opened:
        store = await asyncio.to_thread(self._writable)
        found = {each.folder.name: each for each in checkpoints(self._run / "checkpoints")}
        step = found[name].progress.step if name in found else 0

        async def get() -> Opened:
            return await self._opened.get(name, lambda: self._load(name, found.get(name)), name=name, version=step)

        try:
            opened = await get()
        except BackendError:  # idle models may hold the memory
            await self._opened.close_idle(0.0)
            opened = await get()
        if opened not in self._episodes:
            archive = RunArchive(store, step=lambda: step)
            self._episodes[opened] = Episodes(opened.recorder, archive, most_by_key=None)
        return opened

    def _writable(self) -> RunStore:
        """The run that keeps the answers. Raises UserError if another process writes it, or it cannot be written."""
        with self._opening_store:
            if self._store is None:
                folder, text = self._run / FOLDER, config_text(self._run)
                is_there = RunStore.is_there(folder)
                store = RunStore.open(folder) if is_there else RunStore.create(self._run, FOLDER, text)
                _ = store.journal  # makes this process its writer
                self._store = store
            return self._store

    def _load(self, name: str, found: Checkpoint | None) -> tuple[LoadedModel, ChatText]:
        """Raises UserError if there is no such model, BackendError if it does not fit into memory."""
        own = self._config.model
        if name == _FINAL:
            saved = own.model_copy(update={"path": str(trained_model(self._run)), "lora": None})
            model = load_weights(self._config, saved)
        elif name == _BASE or found is not None:
            model = load_step(self._config, found)
        else:
            raise UserError(f"the run has no checkpoint {name!r} any more; ask for another model")
        chat = own.chat | ({"chat_template": None} if name == _FINAL else {})  # it was saved with its template
        return model, ChatText.load(model.folder, **chat)

    async def _end_sessions(self, opened: Opened) -> None:
        episodes = self._episodes.pop(opened, None)
        if episodes is not None:
            await episodes.aclose("the model was closed")


class _OtherPastError(AgentError):
    """The past of a turn would be rendered into other tokens now, because of the template or the request's other
    fields."""

    def __init__(self) -> None:
        super().__init__("the past of the turn cannot be had again token by token")


class _Past(Recall):
    """Gives the recorded answers of earlier turns; other answers are sampled only once `is_over` is set."""

    def __init__(self, record: SessionRecord) -> None:
        super().__init__(record, newest=2**62)
        self.is_over = False

    def answer(self, call: Call) -> Sampled | None:
        found = None if self.is_over else super().answer(call)
        if found is None and not self.is_over:
            raise _OtherPastError
        return found


async def _relive(session: Session, turns: Sequence[Turn]) -> None:
    """Repeat the turns in the session with their recorded tokens. Raises _OtherPastError if that is impossible."""
    for turn in turns:
        await session.complete(_asked(turn))


def _spec(question: Question) -> SessionSpec:
    return SessionSpec(
        id=question.session,
        task_id=question.kind,
        group_id=question.group,
        metadata=question.metadata,
        is_eval=True,  # so its tokens are never trained on
    )


def _asked(turn: Turn) -> ChatRequest:
    """The request of the turn, as far as it is recorded."""
    return ChatRequest(messages=turn.messages, tools=turn.tools, sampling=turn.sampling, agent=turn.agent)


def _text(delta: Delta) -> str:
    match delta:
        case ContentDelta(text) | ReasoningDelta(text):
            return text
        case ToolCallDelta(name=name, arguments=arguments):
            return f"{name or ''}{arguments}"
        case _:
            return ""


def _config(run: Path) -> Config:
    """The part of the run's configuration that its models need, with an engine in this process, and on the CPU while
    the run is training. Other keys are not read: they may be of another version, or the user's own."""
    config = Config.of({name: value for name, value in read_config(run).items() if name in _NEEDED})
    changes: dict[str, Any] = {}
    if not isinstance(config.engine, LocalSettings):
        changes["engine"] = LocalSettings()
    if state_of(run) == "running":
        changes["model"] = config.model.model_copy(update={"device": "cpu"})
    return planned(config.model_copy(update=changes), trains=False)
