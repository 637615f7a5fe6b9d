"""Demonstrations: an expert's conversations from a column of the rows, added to the group of their row.

Knows: rows, chat text, the records of episodes.  Knows not: who plays the other members, advantages, losses.
Invariant: a reply is trained as in supervised training (`sft.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from ludus.episodes.episode import finish
from ludus.episodes.graph import SessionGraph
from ludus.episodes.outcome import Returned
from ludus.episodes.reward import Result
from ludus.episodes.spec import SessionSpec
from ludus.errors import UserError
from ludus.loop.sft import read_conversation, reply_sequence
from ludus.rollout.tasks import GroupTask
from ludus.text.chat import ChatText
from ludus.types import Episode, Sampled, Sampling


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """The conversations in a column of the rows, in any of these forms: a list of messages; a mapping of `messages`,
    and of `tools`, `reward` and `metrics` if there are any; a list of several of either."""

    text: ChatText
    column: str
    reward: float
    """Of conversations that do not bring their own."""
    temperature: float
    """Of the distribution that they are trained under: that of the sampled members."""

    def __call__(self, task: GroupTask) -> tuple[Episode, ...]:
        """The demonstrations of the group's row; none where the column is missing or empty.

        Raises UserError, naming the row, if one is not a conversation.
        """
        row = task.source.rows[task.row_idx]
        at = f"{task.task_id}, train_dataset.demonstrations={self.column!r}"
        found = _conversations(row.get(self.column) or (), at)
        return tuple(self._episode(task, number, each, at) for number, each in enumerate(found))

    def _episode(self, task: GroupTask, number: int, conversation: Mapping[str, Any], at: str) -> Episode:
        own_id = f"{task.group_id}-d{number:02d}"
        graph, request, numbers = SessionGraph(own_id), read_conversation(conversation, at=at), count()
        last: str | None = None
        for index, message in enumerate(request.messages):
            if message.role != "assistant":
                continue
            sequence = reply_sequence(request.messages[: index + 1], request.tools, self.text, at=f"{at}, {index}")
            start = sequence.target_idx[0]
            tokens = sequence.token_ids[start:]
            nothing = (0.0,) * len(tokens), (0,) * len(tokens)  # logprobs and versions: no weights of ours sampled it
            turn = graph.add_turn(
                turn_id=f"{own_id}-t{next(numbers)}",
                prompt_ids=sequence.token_ids[:start],
                prefix=None,
                follows=last,
                fork="template",
                messages=request.messages[:index],
                reply=message,
                sampled=Sampled(tokens, *nothing, "stop"),
                sampling=Sampling(temperature=self.temperature),
                tools=request.tools,
            )
            last = turn.id
        if last is None:
            raise UserError(f"{at}: there is no message of the assistant's")
        ending = Returned(Result(conversation.get("reward", self.reward), metrics=conversation.get("metrics") or {}))
        spec = SessionSpec(id=own_id, task_id=task.task_id, group_id=task.group_id)
        episode = finish(spec, graph.snapshot(), ending, started_at=0.0)
        if episode.outcome.kind != "ok":
            raise UserError(f"{at}: {episode.outcome.reason}")
        return episode


def _conversations(value: object, at: str) -> Iterator[Mapping[str, Any]]:
    """Every conversation in the value, as a mapping with `messages`."""
    if isinstance(value, Mapping) and "messages" in value:
        yield value
    elif isinstance(value, Sequence) and value and all(isinstance(each, Mapping) and "role" in each for each in value):
        yield {"messages": value}
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _conversations(each, at)
    else:
        raise UserError(
            f"{at}: {value!r:.80} is no conversation; give a list of messages, a mapping with 'messages', or a list "
            "of those"
        )
