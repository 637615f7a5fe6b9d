"""Branches of a run: answers sampled anew from one of its turns, stored in a separate run inside the run's folder.

Knows: that folder, the answers as they arrive.  Knows not: HTTP, models.
Invariants: the watched run is not changed; branches are not trained on, but answers that a user chooses are listed, and
can be exported as rows for supervised training.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ludus.errors import LudusError, UserError
from ludus.processes.files import write_whole
from ludus.runs.interactions import message_json as in_openais_words
from ludus.runs.interactions import tool_json
from ludus.runs.store import RunStore
from ludus.runs.view import Decode, message_text
from ludus.runs.watch.detail import alternatives, message_json, turn_tokens
from ludus.runs.watch.question import BRANCH, FOLDER, Edit, Json, Past, Question, Sampler
from ludus.types import Episode, Turn

logger = logging.getLogger(__name__)

_CHOSEN = "chosen.json"
_MOST_LISTED = 200
_ANSWERED = "outcome = 'ok'"
"""In other episodes the last turn is not the new answer, but an earlier one."""


@dataclass
class _Trying:
    """A branch that is being sampled, or failed."""

    id: str
    about: Json
    samples: list[Json]
    error: str | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def as_json(self, chosen: Collection[str]) -> Json:
        """chosen: episodes that are demonstrations."""
        state = "running" if self.error is None else "failed"
        samples = [{**sample, "chosen": sample.get("episode") in chosen} for sample in self.samples]
        return {"id": self.id, "state": state, "error": self.error, **self.about, "samples": samples}


class Branches:
    """The branches of a run. May be read from several threads; `begin` is called on one event loop."""

    def __init__(self, run: Path, decode: Callable[[], Decode | None]) -> None:
        """decode: returns a function from token ids to text, or None if the model is not on this machine."""
        self._run = run
        self._folder = run / FOLDER
        self._decode = decode
        self._lock = threading.Lock()
        self._trying: dict[str, _Trying] = {}
        self._is_damaged = False
        """Whether their record is damaged. It is then read as a whole each time, to show what can be recovered."""

    def __repr__(self) -> str:
        return f"Branches({str(self._folder)!r}, trying={len(self._trying)})"

    def listed(self) -> list[Json]:
        """The newest first, without their tokens."""
        trying = list(self._trying.values())
        chosen = self._chosen()
        kept = [_branch_json(group, episodes, chosen) for group, episodes in self._groups()]
        known = {each.id for each in trying}
        found = [
            *(each.as_json(chosen) for each in reversed(trying)),
            *(each for each in kept if each["id"] not in known),
        ]
        return [{**each, "samples": [{**sample, "tokens": None} for sample in each["samples"]]} for each in found]

    def one(self, branch: str) -> Json | None:
        """One branch with all tokens. None: there is no such branch."""
        if (trying := self._trying.get(branch)) is not None:
            return trying.as_json(self._chosen())
        for group, episodes in self._groups(branch):
            found = _branch_json(group, episodes, self._chosen())
            for sample, episode in zip(found["samples"], episodes, strict=True):
                sample |= answer_json(episode, episode.session.turns[-1], self._decode())
            return found
        return None

    def damages(self) -> list[str]:
        """A sentence for each damaged file of the branches. What could be recovered is listed."""
        if not self._folder.is_dir():
            return []
        found = []
        try:
            with closing(RunStore.look(self._folder)) as store:
                found += store.damages()
            self._is_damaged = store.is_salvaged
            _read_chosen(self._folder)
        except UserError as error:
            found.append(str(error))
        return [f"{FOLDER}: {each}" for each in found]

    def begin(self, sampler: Sampler, past: Past, *, episode: str, model: str, num: int) -> str:
        """Start sampling a branch; returns its id. Needs a running event loop. num: number of answers."""
        edit = None if past.edit is None else past.edit.model_dump()
        about = {
            "from": {"episode": episode, "turn": past.turn},
            "model": model,
            "served_by": sampler.elsewhere.get(model),
            "edit": edit,
            "created_at": time.time(),
        }
        branch = secrets.token_hex(4)
        samples: list[Json] = [{"text": "", "reward": None, "tokens": None, "chosen": False} for _ in range(num)]
        trying = self._trying[branch] = _Trying(branch, about, samples)
        trying.task = asyncio.create_task(self._try(sampler, trying, past), name=f"ludus-branch-{branch}")
        return branch

    def choose(self, branch: str, sample: int, *, is_chosen: bool) -> bool:
        """Mark an answer as a demonstration, or remove the mark. False: there is no such answer.

        sample: index among the answers that `one` shows, of which some may be missing.
        """
        trying = self._trying.get(branch)
        for _, episodes in self._groups(branch):
            answered: list[Any] = [each.id for each in episodes]
            shown = answered if trying is None else [each.get("episode") for each in trying.samples]
            if sample < len(shown) and shown[sample] in answered:
                with self._lock:
                    chosen: list[Any] = [each for each in _read_chosen(self._folder) if each != shown[sample]]
                    chosen += [shown[sample]] if is_chosen else []
                    write_whole(self._folder / _CHOSEN, json.dumps(chosen) + "\n")
                return True
        return False

    # Inside

    async def _try(self, sampler: Sampler, trying: _Trying, past: Past) -> None:
        async def sample(number: int) -> None:
            question = Question(
                session=f"{trying.id}-{number:02d}",
                group=trying.id,
                model=trying.about["model"],
                past=past,
                metadata={BRANCH: trying.about},
            )
            async for event in sampler.answer(self._run, question):
                own = trying.samples[number]
                new = {"text": own["text"] + event["delta"]} if "delta" in event else event
                trying.samples[number] = {**own, **new}

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(len(trying.samples)):
                    group.create_task(sample(number))
        except* Exception as failures:  # the boundary of the request: shown on the page
            first = failures.exceptions[0]
            trying.error = str(first) if isinstance(first, LudusError) else f"{type(first).__name__}: {first}"
            logger.warning("branch.failed id=%s error=%s", trying.id, trying.error)
        if trying.error is None:  # its record has all of it now
            del self._trying[trying.id]

    def _groups(self, branch: str | None = None) -> Iterator[tuple[str, list[Episode]]]:
        """Branches with the episodes of their answers, the newest first. branch: None: all."""
        if not (self._folder / "run.db").is_file():
            return
        where, values = ("", ()) if branch is None else (" AND group_id = ?", (branch,))
        try:
            store = RunStore.look(self._folder, checks=self._is_damaged)
        except UserError:  # `damages` reports it
            return
        with closing(store):
            groups = store.rows(
                f"SELECT group_id FROM episodes WHERE task_id = '{BRANCH}' AND {_ANSWERED}{where} "
                f"GROUP BY group_id ORDER BY max(num) DESC LIMIT {_MOST_LISTED}",
                values,
            )
            for (group,) in groups:
                sql = f"SELECT num FROM episodes WHERE group_id = ? AND {_ANSWERED} ORDER BY id"
                try:
                    episodes = [store.episode_at(num) for (num,) in store.rows(sql, (group,))]
                except (UserError, ValueError):  # a damaged record, which `damages` reports
                    continue
                if isinstance(episodes[0].metadata.get(BRANCH), dict):
                    yield group, episodes

    def _chosen(self) -> set[str]:
        """Ids of episodes that are demonstrations; empty if the file cannot be read."""
        with suppress(UserError):
            return set(_read_chosen(self._folder))
        return set()


def _branch_json(group: str, episodes: Sequence[Episode], chosen: Collection[str]) -> Json:
    """A branch without its tokens. chosen: ids of episodes that are demonstrations."""
    about: Any = episodes[0].metadata[BRANCH]
    samples = [
        {
            "episode": episode.id,
            "text": message_text(episode.session.turns[-1].reply),
            "reward": episode.reward,
            "tokens": None,
            "chosen": episode.id in chosen,
        }
        for episode in episodes
    ]
    return {**about, "id": group, "state": "finished", "error": None, "samples": samples}


def changed(turn: Turn, edit: Edit | None) -> Turn:
    """The turn as if it had been asked with the edited message. Raises UserError if it has no such message."""
    if edit is None:
        return turn
    if edit.message_index >= len(turn.messages):
        raise UserError(
            f"the edit is of message {edit.message_index}, and the turn was asked with {len(turn.messages)}: from 0 to "
            f"{len(turn.messages) - 1}"
        )
    messages = list(turn.messages)
    messages[edit.message_index] = replace(messages[edit.message_index], content=edit.content)
    return replace(turn, messages=tuple(messages))


def answer_json(episode: Episode, turn: Turn, decode: Decode | None) -> Json:
    """An answer with all its tokens and their recorded alternatives; none of them was trained. The tokens of models
    that are served elsewhere are not known."""
    own = replace(episode, is_eval=False)
    page = turn_tokens(own, turn, use=None, step=None, decode=decode, offset=0, limit=10**9)
    for token in page["tokens"][page["prompt_total"] :]:
        token |= alternatives(turn, token["i"] - page["prompt_total"], decode)
    return {
        "episode": episode.id,
        "text": message_text(turn.reply),
        "reply": message_json(turn.reply),
        "tokens": page["tokens"] if turn.sampled.token_ids else None,
        "stop": turn.abort_cause or turn.sampled.stop_reason,
    }


def demonstrations(run: Path) -> Iterator[Json]:
    """Rows for supervised training, one for each demonstration, in the order in which they were chosen.

    A row has the conversation as `prompt`, the answer as `completion`, and `tools` if there were any.
    """
    folder = run / FOLDER
    chosen = _read_chosen(folder)
    if not chosen:
        return
    with closing(RunStore.look(folder)) as store:
        for episode_id in chosen:
            episode = store.find_episode(episode_id)
            if episode is None:
                continue
            turn = episode.session.turns[-1]
            row: Json = {
                "prompt": [in_openais_words(message) for message in turn.messages],
                "completion": [in_openais_words(turn.reply)],
            }
            yield row | ({"tools": [tool_json(tool) for tool in turn.tools]} if turn.tools else {})


def _read_chosen(folder: Path) -> list[str]:
    """Ids of episodes. Raises UserError if the file is damaged."""
    with suppress(FileNotFoundError):
        try:
            found = json.loads((folder / _CHOSEN).read_bytes())
        except (ValueError, RecursionError):
            found = None
        if not (isinstance(found, list) and all(isinstance(each, str) for each in found)):
            raise UserError(f"{str(folder / _CHOSEN)!r} is damaged: it is no list of episodes; remove it")
        return found
    return []
