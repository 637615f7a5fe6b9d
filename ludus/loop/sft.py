"""Supervised training: the assistant's messages of conversations are trained with the same trainer.

Knows: rows of messages, chat text, the trainer's contract.  Knows not: engines, rewards, episodes.
Invariant: a reply is trained exactly as the model would have to sample it: after the prompt that the template
renders for a request, up to and including the token that ends the turn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import pydantic

from ludus.algorithms.pack import Batch, TrainSequence, pack
from ludus.algorithms.settings import SUPERVISED, AlgorithmSettings
from ludus.engines.base import WeightSource
from ludus.engines.lease import ComputeLease
from ludus.errors import AgentError, UserError
from ludus.gateway.dialects.base import ReadMessages
from ludus.gateway.dialects.chat.dialect import CHAT
from ludus.runs.metrics import Metrics
from ludus.settings import Settings
from ludus.text.chat import ChatText
from ludus.types import ChatRequest, Message, Sampling, ToolSpec

OnStep = Callable[[int, Metrics], None]
T = TypeVar("T")


class SftSettings(Settings):
    """How conversations become steps."""

    batch_size: int = pydantic.Field(default=8, ge=1)
    """Conversations in a step."""
    epochs: int = pydantic.Field(default=1, ge=1)
    max_tokens: int | None = pydantic.Field(default=None, ge=2)
    """Replies that end beyond this many tokens of their conversation are left out. None: all are trained."""
    shuffle: bool = True
    """Shuffle the conversations anew in every epoch."""


class SupervisedLearner(Protocol):
    """What supervised training needs of a trainer."""

    def train_batch(self, batch: Batch, algorithm: AlgorithmSettings) -> Metrics: ...

    def publish(self) -> WeightSource: ...


def train_conversations(
    learner: SupervisedLearner, batch: Batch, lease: ComputeLease, algorithm: AlgorithmSettings = SUPERVISED
) -> Metrics:
    """Train one batch, and write the new weights where the engine samples with them."""
    metrics = learner.train_batch(batch, algorithm)
    with lease.hold("trainer"):
        learner.publish().copy_into_shared()
    return metrics


def supervised_batches(
    text: ChatText, rows: Sequence[Mapping[str, Any]], settings: SftSettings, *, row_tokens: int, seed: int
) -> Iterator[Batch]:
    """The batches of all steps, in order; every assistant message of `rows` is trained.

    rows: each with `messages`, and `tools` if there are any, as a chat completion request has them; or with `prompt`
    and `completion`, both lists of messages.
    row_tokens: of one micro-batch.  seed: of the order of the conversations.
    Raises UserError, with the row's number, for a row that is no conversation.
    """
    conversations = [conversation_sequences(row, text, at=f"row {number}") for number, row in enumerate(rows)]
    if settings.max_tokens is not None:
        limit = settings.max_tokens
        conversations = [[each for each in replies if len(each.token_ids) <= limit] for replies in conversations]
    conversations = [replies for replies in conversations if replies]
    if not conversations:
        raise UserError("nothing to train on: no row has a reply of the assistant within max_tokens")
    for step, chosen in enumerate(in_batches(conversations, settings, seed)):
        replies = [reply for conversation in chosen for reply in conversation]
        total = sum(len(each.target_idx) for each in replies)  # equal weights that sum to 1
        weighted = [replace(each, weights=(1.0 / total,) * len(each.target_idx)) for each in replies]
        yield Batch.of(pack(weighted, row_tokens=row_tokens), version=step)


def conversation_sequences(row: Mapping[str, Any], text: ChatText, *, at: str = "row") -> list[TrainSequence]:
    """One sequence for every assistant message of a row; packing stores their shared prompts once.

    Of a row with `prompt` and `completion` only the completion's messages are trained.
    """
    if "messages" not in row and "completion" in row:
        return answer_sequences(row, row.get("prompt") or (), row["completion"], text, at=f"{at}: 'completion'")
    request = read_conversation(row, at=at)
    return [
        reply_sequence(request.messages[: index + 1], request.tools, text, at=f"{at}, message {index}")
        for index, message in enumerate(request.messages)
        if message.role == "assistant"
    ]


def answer_sequences(
    row: Mapping[str, Any], prompt: Sequence[Any], answer: Sequence[Any], text: ChatText, *, at: str
) -> list[TrainSequence]:
    """One sequence for every assistant message of `answer`, which follows `prompt`; `row` has the tools.

    Raises UserError if there is no such message. at: how the error names the answer.
    """
    count = sum(1 for message in answer if isinstance(message, Mapping) and message.get("role") == "assistant")
    if count == 0:
        raise UserError(f"{at} has no message of the assistant's")
    return conversation_sequences({**row, "messages": [*prompt, *answer]}, text, at=at)[-count:]


def read_conversation(row: Mapping[str, Any], *, at: str) -> ChatRequest:
    """The `messages` and `tools` of a row. Raises UserError if it has no conversation. at: how the error names it."""
    if "messages" not in row:
        raise UserError(f"{at} has no 'messages'; its columns are {', '.join(map(repr, row)) or 'none'}")
    body = {"model": "default", "messages": row["messages"]} | ({"tools": row["tools"]} if row.get("tools") else {})
    try:
        return CHAT.parse(body, Sampling(), ReadMessages()).request
    except AgentError as error:
        raise UserError(f"{at} is no conversation: {error.message}") from error


def reply_sequence(messages: Sequence[Message], tools: Sequence[ToolSpec], text: ChatText, *, at: str) -> TrainSequence:
    """The last message as the trained answer to the messages before it. Raises UserError if the template renders those
    differently once they are answered."""
    prompt_text = text.template.render(messages[:-1], tools)
    whole_text = text.template.render(messages, tools, generation_prompt=False)
    if not whole_text.startswith(prompt_text):
        raise UserError(f"{at}: the chat template shows the reply after another prompt than it asks for replies with")
    prompt_ids = text.tokenizer.encode(prompt_text)
    reply_ids = text.tokenizer.encode(whole_text[len(prompt_text) :])
    ends = [index for index, token in enumerate(reply_ids) if token in text.tokenizer.stop_ids]
    reply_ids = reply_ids[: ends[-1] + 1] if ends else reply_ids  # what follows the end of the turn is not sampled
    whole_ids = prompt_ids + reply_ids
    return TrainSequence.plain(whole_ids, range(len(prompt_ids), len(whole_ids)))


def in_batches(rows: Sequence[T], settings: SftSettings, seed: int) -> Iterator[list[T]]:
    """The rows of all steps, `batch_size` at a time."""
    rng = random.Random(seed)
    for _ in range(settings.epochs):
        order = list(range(len(rows)))
        if settings.shuffle:
            rng.shuffle(order)
        for start in range(0, len(order), settings.batch_size):
            yield [rows[index] for index in order[start : start + settings.batch_size]]
