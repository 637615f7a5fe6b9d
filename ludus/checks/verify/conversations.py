"""Records random conversations with a real model, through the recorder that serves agents.

Knows: sessions, chat requests.  Knows not: what the recorded tokens are used for.
Several sessions run at once, so that the engine batches; pairs have the same beginning, so that prefixes are shared;
some edit the history, so that tokens fork; each samples with other parameters: temperature, top-p, top-k, min-p,
penalties, biases or a grammar.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from ludus.checks.verify.verdict import OnDone, ignore
from ludus.episodes.recorder import Recorder
from ludus.episodes.session import Session
from ludus.episodes.spec import SessionSpec
from ludus.types import ChatRequest, Message, Sampling, SessionRecord

_MAX_NEW_TOKENS = 24
_MAX_TURNS = 6
"""After this many turns a new conversation begins, so that each fits into the context of small models."""
_GRAMMAR = 'start: word (" " word){2,8} "."\nword: "seven" | "the sea" | /[0-9]{1,4}/ | /[a-z]{2,12}/'
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=1.3),
    Sampling(top_p=0.9),
    Sampling(temperature=0.7, top_k=20),
    Sampling(min_p=0.05, presence_penalty=0.5, frequency_penalty=0.3),
    Sampling(repetition_penalty=1.2),
    Sampling(logit_bias=((5, 1.0), (17, -2.0), (100, 3.0))),
    Sampling(grammar=_GRAMMAR),
)
"""One for each session."""
_QUESTIONS = (
    "tell me about the sea and the number seven please why is that so higher lower I think you are right "
    "not quite what comes next a story of two ships in one sentence how do birds find their way home again"
)
_WORDS = tuple(_QUESTIONS.split())


async def play_conversations(
    recorder: Recorder, *, tokens: int, seed: int, on_done: OnDone = ignore
) -> tuple[SessionRecord, ...]:
    """Records with at least `tokens` sampled tokens in total; the same seed asks the same questions."""
    talks = [_Talk(recorder, seed, idx) for idx in range(len(SAMPLINGS))]
    done = 0
    while done < tokens:
        async with asyncio.TaskGroup() as group:
            turns = [group.create_task(talk.next_turn()) for talk in talks]
        done += sum(turn.result() for turn in turns)
        on_done(done, tokens)
    return tuple(record for talk in talks for record in talk.records())


class _Talk:
    """A client that has one conversation after the other with the model."""

    def __init__(self, recorder: Recorder, seed: int, idx: int) -> None:
        self._recorder = recorder
        self._seed = seed
        self._idx = idx
        self._rng = random.Random(f"{seed}/{idx}")
        self._sampling = replace(SAMPLINGS[idx], max_new_tokens=_MAX_NEW_TOKENS)
        self._sessions: list[Session] = []
        self._messages: list[Message] = []

    async def next_turn(self) -> int:
        """Make a turn; returns the number of sampled tokens."""
        if len(self._messages) >= 2 * _MAX_TURNS or not self._sessions:
            self._begin()
        elif self._rng.random() < 0.15:
            at = self._rng.randrange(1, len(self._messages))
            self._messages[at] = replace(self._messages[at], content=self._random_text())
        (turn,) = await self._sessions[-1].complete(ChatRequest(tuple(self._messages), sampling=self._sampling))
        self._messages += [turn.reply, Message("user", self._random_text())]
        return len(turn.sampled.token_ids)

    def records(self) -> list[SessionRecord]:
        return [session.close("done") for session in self._sessions]

    def _begin(self) -> None:
        pair, number = self._idx // 2, len(self._sessions)
        opening = random.Random(f"{self._seed}/{pair}/{number}").choices(_WORDS, k=12)
        self._messages = [Message("system", "You answer briefly."), Message("user", " ".join(opening))]
        session_id = f"talk-{self._seed}-{self._idx}-{number}"
        session = self._recorder.open(SessionSpec(session_id, group_id=f"pair-{pair}", sampling=self._sampling))
        self._sessions.append(session)

    def _random_text(self) -> str:
        return " ".join(self._rng.choices(_WORDS, k=self._rng.randrange(1, 12)))
