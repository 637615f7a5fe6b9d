"""A run in Python: its steps, episodes, turns and tokens as pandas tables.

Knows: the run store, pandas (once a table is asked for).  Knows not: who writes the run meanwhile.
Invariant: loading never changes a run, even while it trains; a table shows the state at the time it was made.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ludus.errors import UserError
from ludus.runs.decoder import decoder_of
from ludus.runs.folder import read_config
from ludus.runs.store import RunStore
from ludus.runs.tokens import StepTokens
from ludus.runs.view import Decode, TurnView, view_turns
from ludus.types import Episode

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

_EPISODES = (
    *("id", "step", "group_id", "task_id", "is_eval", "outcome", "reward"),
    *("num_turns", "num_sampled_tokens", "finished_at"),
)
_TURNS = (
    *("episode_id", "step", "turn_id", "number", "agent", "follows", "fork", "prompt", "reply"),
    *("num_tokens", "mean_logprob", "reward", "advantage", "mask", "ended_by"),
    *("started_at", "first_token_at", "prefill_s", "finished_at"),
)
_USED = ("trained_logprob", "ratio", "clipped", "weight", "loss", "entropy")
"""Columns of a trained token, with the values that its loss used."""
_TOKENS = (
    *("episode_id", "step", "turn_id", "place", "token_id", "text", "logprob", "version", "advantage", "mask"),
    *_USED,
)


def load_run(folder: Path | str) -> LoadedRun:
    """The run in a folder such as `runs/guess`: finished, interrupted, or still training.

    Its files are closed by `close`, at the end of a `with` block, or when the object is garbage-collected.

    Raises UserError if there is none.
    """
    return LoadedRun(RunStore.look(folder))


class LoadedRun(AbstractContextManager["LoadedRun"]):
    """What a run has recorded until now. Tables are built anew on every call."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        # with whoever looks, or with Python: a notebook's names are still there then
        weakref.finalize(self, store.close)
        self._decode: Decode | None = None
        self._looked_for_model = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LoadedRun({str(self._store.folder)!r}: {self._said})"

    def _repr_html_(self) -> str:
        shown = self.steps()
        wanted = ("rollout/reward", "rollout/success", "eval/reward", "eval/success", "train/loss", "train/entropy")
        known = [name for name in wanted if name in shown.columns]
        return f"<b>{escape(self._store.name)}</b>: {escape(self._said)}{shown[known].tail(10).to_html()}"

    @property
    def config(self) -> dict[str, Any]:
        """Every key with its value, from `config.yaml`. Raises UserError if the file is damaged."""
        return read_config(self._store.folder)

    @property
    def summary(self) -> dict[str, Any] | None:
        """The content of `summary.json`. None: the run has not ended."""
        return self._store.summary()

    def steps(self) -> pd.DataFrame:
        """One row per step, indexed by step; a column for each metric, NaN where a step has none."""
        rows = self._store.metrics()
        frame = _frame([values for _, values in rows])
        frame.index = _pandas().Index([step for step, _ in rows], name="step", dtype="int64")
        return frame

    def episodes(self) -> pd.DataFrame:
        """One row for each attempt at an episode, in order of their ends. `step` is NaN if it belongs to none."""
        return _frame(self._store.episode_rows(), _EPISODES).astype({"is_eval": bool})  # SQLite has numbers alone

    def turns(self, step: int | None = None) -> pd.DataFrame:
        """One row for each answer of the model. `prompt` is what was new in its prompt, `mask` why it was not trained.

        step: only episodes of this step. None: all.
        """
        rows = (_turn_row(episode, number, view) for episode, number, view in self._views(step))
        return _frame(self._of_steps(rows), _TURNS)

    def tokens(self, step: int | None = None) -> pd.DataFrame:
        """One row for each sampled token: its logprob when sampled, its turn's advantage or mask, and the values that
        its loss used (NaN if it was not trained or nothing was recorded).

        step: only episodes of this step. None: all, 16 columns for every token of the run.
        """
        used = _UsedTokens(self._store)
        rows = (
            row for episode, _, view in self._views(step) for row in _token_rows(episode, view, used.of(view.turn.id))
        )
        return _frame(self._of_steps(rows), _TOKENS)

    def episode(self, episode_id: str) -> Episode:
        """The record of the last attempt with this id. Raises UserError if there is none."""
        return self._store.episode(episode_id)

    def close(self) -> None:
        """Closing twice is allowed."""
        self._store.close()

    @property
    def _said(self) -> str:
        steps = [step for step, _ in self._store.metrics()]
        state = "ended" if self.summary is not None else "not ended"
        return f"{max(steps, default=0)} steps, {self._store.num_episodes} episodes, {state}"

    def _views(self, step: int | None) -> Iterator[tuple[Episode, int, TurnView]]:
        if not self._looked_for_model:
            self._decode, self._looked_for_model = decoder_of(self._store), True
        credit = self._store.credit()
        for episode in self._store.episodes(step=step):
            for number, view in enumerate(view_turns(episode, decode=self._decode, credit=credit), start=1):
                yield episode, number, view

    def _of_steps(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        steps = {row["id"]: row["step"] for row in self._store.episode_rows()}
        return [row | {"step": steps[row["episode_id"]]} for row in rows]


def _turn_row(episode: Episode, number: int, view: TurnView) -> dict[str, Any]:
    turn = view.turn
    return {
        "episode_id": episode.id,
        "turn_id": turn.id,
        "number": number,
        "agent": turn.agent,
        "follows": turn.follows,
        "fork": turn.fork,
        "prompt": "\n".join(f"{message.role}: {message.content or ''}" for message in view.new_messages),
        "reply": turn.reply.content,
        "num_tokens": len(view.tokens),
        "mean_logprob": view.mean_logprob,
        "reward": view.reward,
        "advantage": view.advantage,
        "mask": view.mask,
        "ended_by": view.ended_by,
        "started_at": turn.started_at,
        "first_token_at": turn.first_token_at or None,
        "prefill_s": turn.sampled.prefill_s,
        "finished_at": turn.finished_at,
    }


class _UsedTokens:
    """The values of tokens used by the losses of a run; the step that was used last is in memory."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._steps: dict[str, int] = dict(store.rows("SELECT turn_id, step FROM credit"))
        self._last: tuple[int, StepTokens | None] = (0, None)

    def of(self, turn_id: str) -> Mapping[int, Mapping[str, float]]:
        """The values of a turn's trained tokens, by their index among its sampled tokens."""
        step = self._steps.get(turn_id)
        if step is None:
            return {}
        if self._last[0] != step:
            try:
                self._last = (step, self._store.tokens(step))
            except UserError as error:  # the rest is there
                logger.warning("%s: %s", self._store.folder, error)
                self._last = (step, None)
        tokens = self._last[1]
        return {} if tokens is None else tokens.of_turn(turn_id)


def _token_rows(episode: Episode, view: TurnView, used: Mapping[int, Mapping[str, float]]) -> Iterator[dict[str, Any]]:
    known = {"episode_id": episode.id, "turn_id": view.turn.id, "advantage": view.advantage, "mask": view.mask}
    for place, token in enumerate(view.tokens):
        numbers = {"token_id": token.id, "text": token.text, "logprob": token.logprob, "version": token.version}
        row = known | {"place": place} | numbers
        if (of_loss := used.get(place)) is not None:  # an advantage may be the token's own
            row |= {name: of_loss[name] for name in ("advantage", *_USED) if name in of_loss}
        yield row


def _frame(rows: list[Any] | list[Mapping[str, float]], columns: tuple[str, ...] | None = None) -> pd.DataFrame:
    return _pandas().DataFrame(rows, columns=None if columns is None else list(columns))


def _pandas() -> Any:
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise UserError("tables of a run need pandas: pip install 'ludus[frames]'") from None
    return pd
