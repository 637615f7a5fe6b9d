"""What is asked in a simulation: sessions of calls, made by a seed or as a run recorded them.

Knows: token ids, lengths of answers, pauses between calls.  Knows not: replicas, policies, time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ludus.errors import UserError
from ludus.runs.store import RunStore
from ludus.types import Episode


@dataclass(frozen=True, slots=True)
class Ask:
    """One call of a session."""

    prompt_ids: tuple[int, ...]
    answer_ids: Sequence[int]
    pause_s: float
    """Between the answer before, or the start of the session, and this call: tools, or the user."""


@dataclass(frozen=True, slots=True)
class SimulatedSession:
    """One episode: calls, each after the answer of the one before."""

    id: str
    group_id: str
    asks: Callable[[], Iterator[Ask]]
    """From the first one on, made when they are needed."""


@dataclass(frozen=True, slots=True)
class SyntheticLoad:
    """Groups of agents that use tools: shared instructions, a prompt for each group, answers with a long tail."""

    num_groups: int
    group_size: int = 8
    max_turns: int = 8
    instruction_tokens: int = 256
    """The same in every session."""
    prompt_tokens: int = 512
    """Of a group's own task, on average."""
    answer_tokens: int = 160
    """The median; one answer in forty is eight times as long."""
    max_new_tokens: int = 2048
    tool_tokens: int = 96
    tool_s: float = 0.5
    """The median of the time that a tool takes; log-normal too."""
    seed: int = 0

    def sessions(self) -> Sequence[SimulatedSession]:
        return [
            SimulatedSession(f"g{group}-m{member}", f"g{group}", partial(self._asks, group, member))
            for group in range(self.num_groups)
            for member in range(self.group_size)
        ]

    def _asks(self, group: int, member: int) -> Iterator[Ask]:
        of_group = random.Random(f"{self.seed}/{group}")
        chance = random.Random(f"{self.seed}/{group}/{member}")
        num_own = round(self.prompt_tokens * of_group.lognormvariate(0, 0.5))
        history = (*range(self.instruction_tokens), *_ids(self.seed, f"g{group}", num_own))
        pause_s = 0.0
        for turn in range(chance.randint(1, self.max_turns)):
            # eight times the median lies at 1.96 deviations above it
            num_tokens = min(self.max_new_tokens, max(1, round(self.answer_tokens * chance.lognormvariate(0, 1.06))))
            new_ids = _ids(
                self.seed,
                f"g{group}/{member}/{turn}",
                num_tokens + round(self.tool_tokens * chance.lognormvariate(0, 0.5)),
            )
            yield Ask(history, new_ids[:num_tokens], pause_s)
            history = (*history, *new_ids)
            pause_s = self.tool_s * chance.lognormvariate(0, 1.0)


def recorded_sessions(run: Path, times: int = 1) -> Sequence[SimulatedSession]:
    """The training episodes of a run as they were asked: its prompts, the lengths of its answers, its pauses.

    times: how often the whole run is asked, one after the other, by other groups.
    Raises UserError if the run has none.
    """
    with RunStore.open(run) as store:
        episodes = [episode for episode in store.episodes(is_eval=False) if episode.session.turns]
    if not episodes:
        raise UserError(f"{run} holds no training episode with a turn; name the folder of a run that was trained")
    return [
        SimulatedSession(f"{episode.id}/{time}", f"{episode.group_id}/{time}", partial(_recorded_asks, episode))
        for time in range(times)
        for episode in episodes
    ]


def _recorded_asks(episode: Episode) -> Iterator[Ask]:
    before_at = episode.started_at or None
    for turn in sorted(episode.session.turns, key=lambda turn: turn.started_at):
        answer_ids = turn.sampled.token_ids
        whole = episode.session.path_ids(turn.node)
        pause_s = 0.0 if before_at is None else max(0.0, turn.started_at - before_at)
        yield Ask(whole[: len(whole) - len(answer_ids)], answer_ids, pause_s)
        before_at = turn.finished_at


def _ids(seed: int, whose: str, num: int) -> range:
    """So many token ids that nobody else has; they name tokens, no vocabulary has them."""
    start = random.Random(f"{seed}/ids/{whose}").getrandbits(48)
    return range(start, start + num)
