"""Handles the page's POST requests: starting branches, choosing answers, chatting.

Knows: the bodies of these requests.  Knows not: access, how a model answers.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence

import pydantic

from ludus.errors import AgentError, LudusError, UserError
from ludus.http.body import Body, read_model
from ludus.runs.watch.branches import changed
from ludus.runs.watch.encode import to_json
from ludus.runs.watch.question import CHAT, MOST_ANSWERS, Edit, Json, Past, Question, Said, Sampler
from ludus.runs.watch.run import NotThereError, WatchedRun

_MOST_MODELS = 2
_CHAT_ID = r"[A-Za-z0-9-]{1,40}"


class _BranchBody(Body):
    episode: str
    turn: str
    edit: Edit | None = None
    n: int = pydantic.Field(default=4, ge=1, le=MOST_ANSWERS)
    model: str


class _ChosenBody(Body):
    sample: int = pydantic.Field(ge=0)
    chosen: bool


class _ChatBody(Body):
    models: tuple[str, ...] = pydantic.Field(min_length=1, max_length=_MOST_MODELS)
    messages: tuple[Said, ...] = pydantic.Field(min_length=1)
    max_tokens: int | None = pydantic.Field(default=None, ge=1)
    temperature: float | None = pydantic.Field(default=None, ge=0.0, le=2.0)
    chat: str = pydantic.Field(default="", pattern=rf"^({_CHAT_ID})?$")
    """The page's id of the conversation. '': each answer is a separate conversation."""


async def posted(run: WatchedRun, sampler: Sampler, rest: Sequence[str], body: bytes) -> Json | AsyncIterator[bytes]:
    """The answer to a POST of `/api/runs/ID/…`, as JSON or as a stream of events. rest: path segments after the id.

    Raises NotThereError, or AgentError for an invalid request.
    """
    match rest:
        case ["branches"]:
            return await _begin_branch(run, sampler, read_model(_BranchBody, body))
        case ["branches", branch, "chosen"]:
            asked = read_model(_ChosenBody, body)
            choose = run.branches.choose
            if not await asyncio.to_thread(choose, branch, asked.sample, is_chosen=asked.chosen):
                raise NotThereError(f"the branch {branch!r} has no answer {asked.sample}, or is not finished yet")
            return {"chosen": asked.chosen}
        case ["chat"]:
            asked_chat = read_model(_ChatBody, body)
            for name in asked_chat.models:
                _check_model(run, sampler, name)
            return _chat(run, sampler, asked_chat)
    raise NotThereError("there is no such route")


async def _begin_branch(run: WatchedRun, sampler: Sampler, asked: _BranchBody) -> Json:
    _check_model(run, sampler, asked.model)
    num, turn = await asyncio.to_thread(run.turn_of, asked.episode, asked.turn)
    past = Past(num=num, turn=turn.id, edit=asked.edit)
    try:
        changed(turn, past.edit)
    except UserError as error:
        raise AgentError(str(error), param="edit.message_index") from None
    return {"branch": run.branches.begin(sampler, past, episode=asked.episode, model=asked.model, num=asked.n)}


def _check_model(run: WatchedRun, sampler: Sampler, name: str) -> None:
    known = [*(each["name"] for each in run.models()), *sampler.elsewhere]
    if name not in known:
        said = f"There is no model {name[:60]!r} to ask: this run has {', '.join(known) or 'none'}."
        raise AgentError(f"{said} {run.models_note()}", status=404, param="model")


async def _chat(run: WatchedRun, sampler: Sampler, asked: _ChatBody) -> AsyncIterator[bytes]:
    """Events of all models as they arrive; the last event of each is `done`, or has the error as `detail`."""
    events: asyncio.Queue[Json] = asyncio.Queue()
    chat = asked.chat or secrets.token_hex(4)

    async def talk(name: str) -> None:
        question = Question(
            session=f"{CHAT}-{chat}-{name}",
            group=f"{CHAT}-{chat}",
            model=name,
            messages=asked.messages,
            max_tokens=asked.max_tokens,
            temperature=asked.temperature,
            metadata={CHAT: {"model": name, "served_by": sampler.elsewhere.get(name)}},
        )
        try:
            async for event in sampler.answer(run.folder, question):
                events.put_nowait({"model": name, **event})
        except LudusError as error:
            events.put_nowait({"model": name, "done": True, "detail": str(error)})

    async with asyncio.TaskGroup() as group:
        for name in asked.models:
            group.create_task(talk(name))
        left = len(asked.models)
        while left:
            event = await events.get()
            left -= bool(event.get("done"))
            yield f"data: {to_json(event)}\n\n".encode()
