"""Prepares turns as rows of a table: what was sampled, how training would use it, and why.

Knows: episodes, the rules for building a batch.  Knows not: terminals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ludus.algorithms.resolve import algorithm_of
from ludus.algorithms.settings import AlgorithmSettings
from ludus.compat.config import Config
from ludus.episodes.export import TurnCredit, export_session
from ludus.episodes.ledger import Ledger, MaskReason
from ludus.loop.batch import BatchRules, credit_groups
from ludus.rollout.groups import discard_reason, small_group_mask
from ludus.runs.view import Decode, TokenView, view_turns
from ludus.types import Episode, Group


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One turn in numbers."""

    number: int
    reply: str
    num_tokens: int | None
    """None: not reported by the model."""
    mean_logprob: float | None
    reward: float | None
    """None: the agent gave this turn no reward."""
    note: str
    """Why tokens are masked or the prompt forked; '' if neither is the case."""
    num_trained: int | None = None
    """Number of tokens that training would use. None: an external model, which is never trained."""
    advantage: float | None = None
    """Compared with the other episodes of its row; the return itself if there are no others, or if advantages need
    values that only a trainer can compute. None: not trained."""
    tokens: tuple[TokenView, ...] = ()


def rows_of_group(group: Group, config: Config, decode: Decode | None) -> list[tuple[Episode, list[TurnRow]]]:
    """Every episode of a group with its turns, credited or discarded as in training."""
    members = sorted(group.episodes, key=lambda episode: episode.id)
    masks = {episode.id: discard_reason(episode) for episode in members}
    survivors = tuple(episode for episode in members if masks[episode.id] is None)
    too_small = small_group_mask(len(survivors), len(members), config.rollout)
    rules = _rules(config, is_alone=len(survivors) == 1)
    credited: dict[str, Mapping[str, TurnCredit]] = {}
    if not too_small:
        (pairs,) = credit_groups([Group(group.id, group.task_id, survivors)], rules)
        credited = {episode.id: credit for episode, credit in pairs}
    return [
        (episode, _rows(episode, credited.get(episode.id, {}), masks[episode.id] or too_small, decode))
        for episode in members
    ]


def _rows(
    episode: Episode, credit: Mapping[str, TurnCredit], mask: MaskReason | None, decode: Decode | None
) -> list[TurnRow]:
    """The rows of an episode. credit: by turn id. mask: why the episode is discarded. None: it is not."""
    rows = []
    for number, view in enumerate(view_turns(episode, decode=decode, credit={}), start=1):
        turn = view.turn
        ledger = _account(episode, credit, turn.id) if mask is None else Ledger.all_masked(len(view.tokens), mask)
        forked = [f"fork: {turn.fork}"] if turn.fork else []
        ended = [f"ended by {view.ended_by}"] if view.ended_by != "stop" else []
        masked = [reason.replace("_", " ") for reason in ledger.masked]
        calls = "".join(f" → {call.name}({call.arguments})" for call in turn.reply.tool_calls)
        rows.append(
            TurnRow(
                number=number,
                reply=f"{turn.reply.content or ''}{calls}",
                num_tokens=len(view.tokens),
                num_trained=ledger.trained,
                mean_logprob=view.mean_logprob if view.tokens else None,
                reward=view.reward,
                advantage=credit[turn.id].mean if mask is None else None,
                note=", ".join([*masked, *forked, *ended]),
                tokens=view.tokens,
            )
        )
    return rows


def _rules(config: Config, *, is_alone: bool) -> BatchRules:
    """The rules of a training step, except that a lone episode is not compared with others, and that no values of a
    trainer are available."""
    needs = algorithm_of(config.algorithm).needs
    is_measured = needs.teacher or bool(needs.measured)
    return BatchRules(
        algorithm=AlgorithmSettings(name="reinforce") if is_alone or is_measured else config.algorithm,
        turn_discount=config.rollout.agent.turn_discount,
        export_style=config.rollout.agent.export_style,
        row_tokens=config.trainer.row_tokens,
        max_token_age=config.rollout.max_token_age,
    )


def _account(episode: Episode, credit: Mapping[str, TurnCredit], turn_id: str) -> Ledger:
    """The ledger of one turn, computed by training's export: how many tokens are trained, and why others are not."""
    alone = {name: value if name == turn_id else TurnCredit(None, "unused") for name, value in credit.items()}
    ledger = export_session(episode.session, alone, weight=1.0, style="individual").ledger
    masked: dict[MaskReason, int] = {name: count for name, count in ledger.masked.items() if name != "unused"}
    return Ledger(ledger.trained + sum(masked.values()), ledger.trained, masked)
