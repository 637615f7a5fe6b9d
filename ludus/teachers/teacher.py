"""How much likelier a teacher finds what was sampled than the policy does, token by token.

Knows: the token graph of episodes, scorers, hints.  Knows not: what the numbers are for.
Invariant: both sides are of the bare model's distribution, temperature 1, whatever the agent sampled with and whichever
weights sampled: the policy's are those that are trained next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ludus.errors import UserError
from ludus.teachers.base import ScoredPath, Scorer
from ludus.teachers.hints import Hints
from ludus.types import Episode, Turn

Chosen = Mapping[str, Sequence[int]]
"""By turn id which of its sampled tokens are scored, by their places among them, rising; turns without any left out."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """A scorer of what was sampled, beside the policy that sampled it."""

    scorer: Scorer
    policy: Scorer
    """Scores with the weights that sample: tokens of which the record holds the logprob of another distribution, or of
    other weights."""
    hints: Hints | None = None
    is_offline: bool = False
    """What is scored was sampled by another training: its versions are of other weights, whatever their numbers."""

    async def gaps(self, episodes: Sequence[Episode], chosen: Chosen, *, version: int) -> dict[str, tuple[float, ...]]:
        """log teacher - log policy of every chosen token, by turn id.

        version: of the weights that sample now, of which the policy's side is.

        Raises BackendError if the teacher cannot be reached, UserError where it cannot score a conversation, or calls
        a token that was sampled impossible.
        """
        turns = {turn.id: turn for episode in episodes for turn in episode.session.turns if turn.id in chosen}
        changed = {turn_id: chosen[turn_id] for turn_id, turn in turns.items() if not self._is_known(turn, version)}
        theirs = await _scored(self.scorer, episodes, chosen, self.hints)
        for episode in episodes:
            for turn in episode.session.turns:
                for i, logprob in zip(chosen.get(turn.id, ()), theirs.get(turn.id, ()), strict=True):
                    if not math.isfinite(logprob):
                        raise UserError(
                            f"the logprobs of {self.scorer!r} must be finite, got {logprob} of token {i} (id "
                            f"{turn.sampled.token_ids[i]}) of turn {turn.id!r}, row {episode.task_id!r}; take a "
                            "teacher that forbids no tokens and whose weights are sound in its dtype"
                        )
        ours = {turn_id: tuple(turn.sampled.logprobs[i] for i in chosen[turn_id]) for turn_id, turn in turns.items()}
        ours |= await _scored(self.policy, episodes, changed)
        return {
            turn_id: tuple(one - other for one, other in zip(logprobs, ours[turn_id], strict=True))
            for turn_id, logprobs in theirs.items()
        }

    async def close(self) -> None:
        await self.scorer.close()

    def _is_known(self, turn: Turn, version: int) -> bool:
        """The record holds the logprobs that the bare model has now."""
        return not self.is_offline and turn.sampling.is_models_own and set(turn.sampled.versions) <= {version}


async def _scored(
    scorer: Scorer, episodes: Sequence[Episode], chosen: Chosen, hints: Hints | None = None
) -> dict[str, tuple[float, ...]]:
    """By turn id the logprobs of its chosen tokens.

    Turns on one way from the root to a leaf are scored in one path; who scores may share what paths have in common.
    """
    asked = [each for episode in episodes for each in _paths(episode, chosen, hints)]
    found: dict[str, tuple[float, ...]] = {}
    if not asked:
        return found
    for (_, turns), logprobs in zip(asked, await scorer.score([path for path, _ in asked]), strict=True):
        start = 0
        for turn in turns:
            end = start + len(chosen[turn.id])
            found[turn.id] = logprobs[start:end]
            start = end
    return found


def _paths(episode: Episode, chosen: Chosen, hints: Hints | None) -> list[tuple[ScoredPath, tuple[Turn, ...]]]:
    """What is scored of an episode, and the turns whose tokens are wanted, in the order of the tokens."""
    record = episode.session
    ends, turn_of = record.path_lengths(), {turn.node: turn for turn in record.turns}
    starts = {turn.id: ends[turn.node] - len(turn.sampled.token_ids) for turn in record.turns}
    paths: list[tuple[ScoredPath, tuple[Turn, ...]]] = []
    for chain in record.chains([turn for turn in record.turns if turn.id in chosen]):
        token_ids, shift = record.path_ids(chain[-1].node), 0
        if hints is not None:
            first = turn_of[next(node for node in record.path_nodes(chain[-1].node) if node in turn_of)]
            length = starts[first.id]
            prompt_ids = hints.prompt_ids(episode, first, token_ids[:length])
            token_ids, shift = prompt_ids + token_ids[length:], len(prompt_ids) - length
        wanted = tuple(starts[turn.id] + shift + i for turn in chain for i in chosen[turn.id])
        paths.append((ScoredPath(token_ids, wanted), chain))
    return paths
