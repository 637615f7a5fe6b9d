"""A run as shown by the page, read from its folder on demand.

Knows: the run's folder, its index, its curves.  Knows not: HTTP.
Invariants: nothing in the folder is changed; a damaged or missing file hides only its own content, and is reported.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from ludus.algorithms.explain import explain_run
from ludus.algorithms.settings import AlgorithmSettings
from ludus.errors import UserError
from ludus.runs.decoder import decoder_of
from ludus.runs.folder import read_config, without_secrets
from ludus.runs.forks import fork_examples
from ludus.runs.store import RunStore
from ludus.runs.tokens import StepTokens, path_of
from ludus.runs.view import Decode
from ludus.runs.watch.branches import Branches
from ludus.runs.watch.curves import Curves
from ludus.runs.watch.detail import TurnUse, alternatives, episode_detail, message_json, turn_tokens
from ludus.runs.watch.follow import IndexFollower
from ludus.runs.watch.health import Observed, findings
from ludus.runs.watch.index import EpisodeIndex
from ludus.runs.watch.ledger import ledger_of
from ludus.runs.watch.outline import outline, state_of
from ludus.runs.watch.position import Position
from ludus.runs.watch.query import (
    EpisodeQuery,
    episode_row,
    find_attempts,
    find_episodes,
    find_failures,
    find_groups,
    find_siblings,
    first_with_fork,
)
from ludus.types import Episode, Turn

Json = dict[str, Any]
T = TypeVar("T")
_EVAL = "eval/"
_NUM_EPISODES, _NUM_STEPS = 8, 2
"""Episodes and steps kept in memory: a record has some megabytes, the tokens of a step some tens."""
_MOST_VALUES = 2_000_000
"""Numbers and messages of the episodes kept in memory, some 40 bytes each; of very long ones the newest alone is."""
_BEGUN_IN_S, _LISTED_IN_S = 0.5, 10.0
_POLL_S = 0.01
_NEWEST = 400
"""Number of newest episodes that health is judged by."""
_MOST_FAILURES = 20
_FORKS = re.compile(r"rollout/fork_(.+)_turns")
_CHECKPOINT = re.compile(r"step-(\d+)")


class NotThereError(UserError):
    """The requested object is not in the run."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation."""

    step: int
    rewards: Mapping[str, float]
    """By task: the mean over its episodes that got a reward."""
    unrewarded: frozenset[str]
    """Tasks of which no episode got one."""
    num_episodes: int
    num_unrewarded: int
    """Episodes without a reward, of all tasks."""


class WatchedRun:
    """A run that is watched. Safe to use from several threads."""

    def __init__(self, folder: Path, run_id: str, *, decode: Decode | None = None) -> None:
        """decode: returns the text of token ids. None: that of the run's model, if it is on this machine.

        Raises UserError if there is no run in the folder.
        """
        self.folder, self.id = folder, run_id
        self.used_at = time.monotonic()
        """When it was asked for last."""
        self._file = _file_of(folder)
        self.curves = Curves(folder)
        self._store = RunStore.look(folder, checks=False)
        self._follower = IndexFollower(folder, lambda: RunStore.look(folder, checks=False))
        self._follower.start()
        self._lock = threading.Lock()
        self._episodes: _Newest[Episode] = _Newest(_MOST_VALUES, _num_values)
        self._tokens: _Newest[StepTokens | None] = _Newest(_NUM_STEPS, lambda _: 1)
        self._decode, self._looked_for_model = decode, decode is not None
        self._damage: list[str] = []
        self._is_closed = False
        self.branches = Branches(folder, lambda: self.decode)
        self._checker = threading.Thread(target=self._check, name=f"ludus-check-{folder.name}", daemon=True)
        self._checker.start()

    @property
    def is_there(self) -> bool:
        """Whether the folder still has the run.db that was opened. It has another one if the run was removed and begun
        again, or its database was repaired."""
        return _file_of(self.folder) == self._file

    def close(self) -> None:
        """Closing twice is allowed."""
        self._is_closed = True
        self._follower.close()
        self._store.close()

    def wait(self, *, num_read: int) -> None:
        """Wait until the folder was checked, and `num_read` of the newest episodes, or all of them, were read."""
        self._checker.join()
        index = self._listed()
        while min(num_read, self.num_episodes) > self.num_episodes - index.num_unread and self._follower.is_following:
            time.sleep(_POLL_S)

    # The whole run

    @property
    def state(self) -> str:
        return state_of(self.folder)

    def position(self) -> Position:
        self.used_at = time.monotonic()  # who listens to its events asks again and again
        self.curves.update()
        return Position(self.curves.num_lines, self.num_episodes, self.state)

    def overview(self) -> Json:
        position = self.position()  # first, so that what comes meanwhile is beyond it
        config, why = self._config()
        return {
            **outline(self.folder, self.id),
            "position": str(position),
            "can_sample": False,  # set by the server if it has a sampler
            "config": without_secrets(config),
            "summary": self._store.summary(),
            "metrics": self.curves.names,
            "steps": self.curves.steps,
            "evaluations": self._evaluations([name for name in self.curves.names if name.startswith(_EVAL)]),
            "damage": [*self._damage, *why, *filter(None, [self._follower.problem])],
            "algorithm": _algorithm(config),
            "checkpoints": self._checkpoints(),
            "models": self.models(),
            "models_note": self.models_note(),
        }

    def metrics(self, names: list[str]) -> Json:
        """Series of these metrics; those of evaluations are separate, with only the steps that have them."""
        self.curves.update()
        num_lines = self.curves.num_lines  # first, so that the series have at least these lines
        steps = self.curves.steps
        known = names or self.curves.names
        evals = [name for name in known if name.startswith(_EVAL)]
        at = self._evaluations(evals)
        return {
            "num_lines": num_lines,
            "steps": steps,
            "series": {name: self.curves.series(name, steps) for name in known if not name.startswith(_EVAL)},
            "evals": {"steps": at, "series": {name: self.curves.series(name, at) for name in evals}},
        }

    def health(self) -> Json:
        self.curves.update()
        index = self._listed()
        newest = f"(SELECT num, outcome FROM episodes WHERE is_eval = 0 ORDER BY num DESC LIMIT {_NEWEST})"
        outcomes = dict(index.rows(f"SELECT outcome, count(*) FROM {newest} GROUP BY outcome"))
        best = index.rows(
            "SELECT reward FROM episodes WHERE is_eval = 0 AND reward IS NOT NULL ORDER BY reward DESC LIMIT 1"
        )
        observed = Observed(
            self.id,
            self.curves.points,
            outcomes=outcomes,
            failing=find_failures(index, most=_MOST_FAILURES, newest=_NEWEST),
            failures=find_failures(index, most=_MOST_FAILURES),
            forks=self._fork_counts(),
            best_reward=best[0][0] if best else None,
            state=self.state,
        )
        return {"findings": [each.as_json() for each in findings(observed)]}

    def failures(self) -> Json:
        index = self._listed()
        num_unread = index.num_unread  # read first, so that every missing episode is counted
        return {"failures": find_failures(index, most=_MOST_FAILURES), "num_unread": num_unread}

    def forks(self) -> Json:
        """Number of forked turns for each reason, the most frequent first, with the first example."""
        self.curves.update()
        found = []
        for reason, num_turns in self._fork_counts().items():
            num, example = first_with_fork(self._listed(), reason), None
            if num is not None and self.decode is not None:
                episode = self._store.episode_at(num)
                example = fork_examples(episode.session, self.decode).get(reason)
            about = None if example is None else {**asdict(example), "episode": f"{episode.id}@{num}"}
            found.append({"reason": reason, "num_turns": num_turns, "example": about})
        return {"forks": found}

    def ledger(self) -> Json:
        self.curves.update()
        sql = "SELECT coalesce(sum(num_tokens), 0) FROM episodes WHERE is_eval = 1"
        ((num_evaluated,),) = self._listed().rows(sql)
        return ledger_of(self.curves, self._store.summary(), num_evaluated=num_evaluated)

    def step(self, step: int) -> Json:
        """The data of a step. Raises NotThereError if the run has no such step."""
        self.curves.update()
        numbers = self.curves.at(step)
        if not numbers:
            raise NotThereError(f"the run has no step {step}")
        tokens = self._step_tokens(step)
        return {
            "step": step,
            "metrics": numbers,
            "loss": numbers.get("train/loss"),
            "loss_of_tokens": None if tokens is None else tokens.loss,
            "num_trained": None if tokens is None else tokens.num_trained,
            "groups": find_groups(self._listed(), step=step),
        }

    def models(self) -> list[Json]:
        """The models of the run that exist on disk, and can be asked."""
        base = self._config()[0].get("model", {}).get("path")
        models = [{"name": "base", "label": f"base: {base}"}] if base else []
        models += [
            {"name": f"step-{each['step']:06d}", "label": f"step {each['step']}"}
            for each in self._checkpoints()
            if each["whole"]
        ]
        return models + ([{"name": "final", "label": "trained"}] if (self.folder / "model").is_dir() else [])

    def models_note(self) -> str:
        """A sentence that says why there are no more models."""
        kept = self._config()[0].get("checkpoint", {}).get("keep", "some")
        return (
            f"Of the steps the latest {kept} that were saved are kept; a larger checkpoint.keep keeps more. Models "
            "that are served elsewhere answer too: ludus watch --model NAME=ADDRESS."
        )

    # Episodes

    def episodes(self, query: EpisodeQuery, *, offset: int, limit: int) -> Json:
        return find_episodes(self._begun(), query, offset=offset, limit=limit)

    def groups(self, step: int | None) -> Json:
        return {"groups": find_groups(self._listed(), step=step)}

    @property
    def num_episodes(self) -> int:
        return int(self._begun().rows("SELECT count(*) FROM episodes")[0][0])

    def episode(self, episode_id: str) -> Json:
        num, episode = self._episode(episode_id)
        index = self._listed()
        row = episode_row(index, num) or {"id": episode_id, "num": num}
        detail = episode_detail(
            episode,
            uses=self._uses([turn.id for turn in episode.session.turns]),
            decode=self.decode,
            turn_discount=self._turn_discount(),
        )
        siblings = find_siblings(index, row["group_id"]) if "group_id" in row else []
        attempts = find_attempts(index, episode.id)
        return {**row, "reason": episode.outcome.reason, "siblings": siblings, "attempts": attempts, **detail}

    def tokens(self, episode_id: str, turn_id: str, *, offset: int, limit: int) -> Json:
        episode, turn = self._turn(episode_id, turn_id)
        use = self._uses([turn_id]).get(turn_id)
        step = None if use is None or episode.is_eval else self._step_tokens(use.step)
        return turn_tokens(episode, turn, use=use, step=step, decode=self.decode, offset=offset, limit=limit)

    def messages(self, episode_id: str, turn_id: str) -> Json:
        """All messages that the model was given in the turn, in order."""
        return {"messages": [message_json(each) for each in self._turn(episode_id, turn_id)[1].messages]}

    def turn_of(self, episode_id: str, turn_id: str) -> tuple[int, Turn]:
        """The turn, and the number of its episode. Raises NotThereError if there is none."""
        return self._episode(episode_id)[0], self._turn(episode_id, turn_id)[1]

    def alternatives(self, episode_id: str, turn_id: str, i: int) -> Json:
        episode, turn = self._turn(episode_id, turn_id)
        place = i - (episode.session.path_lengths()[turn.node] - len(turn.sampled.token_ids))
        if not 0 <= place < len(turn.sampled.token_ids):
            raise NotThereError(f"token {i} of turn {turn_id} was not sampled")
        return alternatives(turn, place, self.decode)

    @property
    def decode(self) -> Decode | None:
        """None: the run's model is not here."""
        with self._lock:
            if not self._looked_for_model:
                self._decode, self._looked_for_model = decoder_of(self._store), True
            return self._decode

    def evaluated(self, step: int | None) -> Evaluated | None:
        """The evaluation at `step`, or the last one. None: there is none."""
        index = self._listed()
        # an evaluation that was played again, after a resume, is the newer one; what was lost was played again too
        played = "is_eval = 1 AND is_replaced = 0 AND outcome <> 'lost' AND (? IS NULL OR step = ?)"
        ((found,),) = index.rows(f"SELECT max(step) FROM episodes WHERE {played} AND reward IS NOT NULL", (step, step))
        if found is None:
            return None
        rows = index.rows(
            f"SELECT task_id, avg(reward), count(*), count(reward) FROM episodes WHERE {played} GROUP BY task_id",
            (found, found),
        )
        return Evaluated(
            step=found,
            rewards={task: mean for task, mean, _, _ in rows if mean is not None},
            unrewarded=frozenset(task for task, mean, _, _ in rows if mean is None),
            num_episodes=sum(num for _, _, num, _ in rows),
            num_unrewarded=sum(num - num_rewards for _, _, num, num_rewards in rows),
        )

    @property
    def held_out(self) -> tuple[Any, Any]:
        """Where the held-out rows are from, by the run's configuration."""
        given = self._config()[0].get("valid_dataset")
        return (given.get("path"), given.get("mix")) if isinstance(given, dict) else (None, None)

    def evaluated_steps(self) -> list[int]:
        """Steps after which held-out rows were played and got rewards."""
        sql = "SELECT DISTINCT step FROM episodes WHERE is_eval = 1 AND reward IS NOT NULL AND step IS NOT NULL"
        return sorted(step for (step,) in self._listed().rows(sql))

    # Inside

    def _evaluations(self, names: Iterable[str]) -> list[int]:
        """Steps that have one of these metrics of evaluations."""
        return sorted({step for name in names for step, _ in self.curves.points(name)})

    def _fork_counts(self) -> dict[str, int]:
        totals = {
            found[1]: sum(int(value) for _, value in self.curves.points(name))
            for name in self.curves.names
            if (found := _FORKS.fullmatch(name))
        }
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def _begun(self) -> EpisodeIndex:
        """The index, which has at least the newest episodes."""
        self._follower.wait_begun(_BEGUN_IN_S)
        return self._follower.index

    def _listed(self) -> EpisodeIndex:
        self._follower.wait_listed(_LISTED_IN_S)
        return self._follower.index

    def _check(self) -> None:
        """The slow checks, in the background: loads the tokenizer, and verifies all of run.db, a second a gigabyte. If
        it is damaged, the recovered data is shown from then on."""
        _ = self.decode
        try:
            store = RunStore.look(self.folder)
        except UserError as error:
            self._damage = [str(error)]
            return
        damage = store.damages()
        if store.is_salvaged and not self._store.is_salvaged:
            follower = IndexFollower(self.folder, lambda: RunStore.look(self.folder))
            follower.start()
            (self._store, store), (self._follower, old) = (store, self._store), (follower, self._follower)
            old.close()
            if self._is_closed:
                self.close()
        store.close()
        self._damage = list(dict.fromkeys([*damage, *self.branches.damages(), *self._damage]))

    def _config(self) -> tuple[dict[str, Any], list[str]]:
        try:
            return read_config(self.folder), []
        except UserError as error:
            return {}, [] if str(error) in self._damage else [str(error)]

    def _turn_discount(self) -> float:
        agent = self._config()[0].get("rollout", {}).get("agent", {})
        value = agent.get("turn_discount", 1.0) if isinstance(agent, dict) else 1.0
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else 1.0

    def _checkpoints(self) -> list[Json]:
        found = (path for path in self._store.checkpoints.glob("step-*") if _CHECKPOINT.fullmatch(path.name))
        return [
            {"step": int(path.name.removeprefix("step-")), "whole": (path / "progress.json").is_file()}
            for path in sorted(found)
        ]

    def _episode(self, episode_id: str) -> tuple[int, Episode]:
        """The last attempt with this id, or `id@num`. Raises NotThereError, or UserError if it cannot be read."""
        name, _, num = episode_id.rpartition("@")
        sql, values = "SELECT max(num) FROM episodes WHERE id = ?", (episode_id,)
        ((found,),) = self._store.rows(sql, values)
        if found is None and num.isdigit() and len(num) <= 15:
            ((found,),) = self._store.rows("SELECT max(num) FROM episodes WHERE id = ? AND num = ?", (name, int(num)))
        if found is None:
            raise NotThereError(f"the run holds no episode {episode_id!r}")
        ((outcome, reward),) = self._store.rows("SELECT outcome, reward FROM episodes WHERE num = ?", (found,))

        def read() -> Episode:
            try:
                return self._store.episode_at(found)
            except ValueError as error:  # a damaged record
                raise UserError(f"the record of episode {episode_id!r} is damaged") from error

        return found, self._episodes.get((found, outcome, reward), read)

    def _turn(self, episode_id: str, turn_id: str) -> tuple[Episode, Turn]:
        _, episode = self._episode(episode_id)
        for turn in episode.session.turns:
            if turn.id == turn_id:
                return episode, turn
        raise NotThereError(f"the episode {episode_id!r} has no turn {turn_id!r}")

    def _uses(self, turn_ids: Sequence[str]) -> dict[str, TurnUse]:
        return {
            turn_id: TurnUse(step, advantage, mask)
            for turn_id, step, advantage, mask in self._store.credit_of(turn_ids)
        }

    def _step_tokens(self, step: int) -> StepTokens | None:
        """The step's trained tokens. None: not recorded, or the file is damaged, which is then reported."""

        def read() -> StepTokens | None:
            try:
                return self._store.tokens(step)
            except UserError as error:
                if str(error) not in self._damage:
                    self._damage = [*self._damage, str(error)]
                return None

        path = path_of(self.folder, step)
        written_at = path.stat().st_mtime_ns if path.is_file() else 0
        return self._tokens.get((step, written_at), read)


def _file_of(folder: Path) -> tuple[int, int] | None:
    """Device and inode of the folder's run.db. None: there is none."""
    with suppress(OSError):
        found = (folder / "run.db").stat()
        return found.st_dev, found.st_ino
    return None


def _num_values(episode: Episode) -> int:
    """What an episode weighs in memory; each turn holds all messages that it began with."""
    turns = episode.session.turns
    kept = sum(len(ids) for turn in turns for ids in turn.sampled.kept_ids or () if ids)
    own = sum(4 * len(turn.sampled.token_ids) + len(turn.messages) for turn in turns)
    return max(_MOST_VALUES // _NUM_EPISODES, own + kept)


class _Newest(dict[Hashable, T]):
    """A cache of the most recently used values, as far as they weigh no more than `most`; one is always kept."""

    def __init__(self, most: int, weigh: Callable[[T], int]) -> None:
        super().__init__()
        self._most, self._weigh, self._lock = most, weigh, threading.Lock()
        self._weights: OrderedDict[Hashable, int] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:  # type: ignore[override]
        with self._lock:
            if key not in self:
                self[key] = value = make()
                self._weights[key] = self._weigh(value)
            self._weights.move_to_end(key)
            while len(self) > 1 and sum(self._weights.values()) > self._most:
                del self[self._weights.popitem(last=False)[0]]
            return self[key]


def _algorithm(config: Mapping[str, Any]) -> Json:
    """The algorithm's name, and its formulas with the run's numbers, one line each."""
    values = config.get("algorithm", {})
    try:
        settings = AlgorithmSettings(**values)
        terms = explain_run(settings, config)
    except (UserError, AttributeError, KeyError, TypeError, ValueError):
        return {"name": values.get("name") if isinstance(values, dict) else None, "formula": None}
    return {"name": settings.name, "formula": [f"{term.name} = {term.formula}" for term in terms]}
