"""The log-ratio between a teacher and the policy for each sampled token.

Knows: the token graph of episodes, scorers, hints.  Knows not: what the numbers are for.
Invariant: both sides use the models' own distributions at temperature 1, whatever sampling parameters or weights
sampled the token; the policy's weights are those that are trained next.
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
"""By turn id: the sorted indices of its sampled tokens to score. Turns without any are left out."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """Compares a scorer with the policy on sampled tokens."""

    scorer: Scorer
    policy: Scorer
    """Scores with the current weights, if a recorded logprob is of another distribution or of other weights."""
    hints: Hints | None = None
    is_offline: bool = False
    """The tokens come from another training run: their version numbers refer to other weights."""

    async def gaps(self, episodes: Sequence[Episode], chosen: Chosen, *, version: int) -> dict[str, tuple[float, ...]]:
        """log teacher - log policy of every chosen token, by turn id.

        version: of the current weights, which the policy's side uses.

        Raises BackendError if the teacher cannot be reached, UserError if it cannot score a conversation, or gives a
        sampled token probability 0.
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
        """Whether the recorded logprobs are those of the current model's own distribution."""
        return not self.is_offline and turn.sampling.is_models_own and set(turn.sampled.versions) <= {version}


async def _scored(
    scorer: Scorer, episodes: Sequence[Episode], chosen: Chosen, hints: Hints | None = None
) -> dict[str, tuple[float, ...]]:
    """By turn id the logprobs of its chosen tokens.

    Turns on one path from the root to a leaf are scored together; the scorer may share common prefixes of paths.
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
    """The paths to score in an episode, each with the turns whose tokens are wanted, in the order of the tokens."""
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
