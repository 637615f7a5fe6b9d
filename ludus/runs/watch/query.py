"""Queries the index of a run's episodes: pages, groups, failures and counts.

Knows: the index's tables, SQL.  Knows not: HTTP, how the index is made.
Invariant: values of a query are passed as SQL parameters, never as SQL text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ludus.algorithms.base import are_equal
from ludus.runs.failures import KINDS, line_of
from ludus.runs.watch.index import EpisodeIndex, search_words
from ludus.runs.watch.shown import shown_from, shown_to

Sort = Literal["num", "-num", "reward", "-reward", "turns", "tokens", "-turns", "-tokens"]
SORTS: tuple[Sort, ...] = ("num", "-num", "reward", "-reward", "turns", "tokens", "-turns", "-tokens")
_ORDER = {"num": "num", "reward": "reward", "turns": "num_turns", "tokens": "num_tokens"}
_NUM_BINS = 20
_ROUNDING = 1e-9
_MOST_MEMBERS = 4_000  # of groups of all steps: some hundred kilobytes
_ADVANTAGE = "CASE WHEN num_advantages THEN advantage_sum / num_advantages END"
_STALENESS = "used_step - 1 - min_version"
_EPISODE = (
    "num, id, step, group_id, task_id, is_eval, outcome, reward, num_turns, num_tokens, finished_at, num_forks, "
    f"{_ADVANTAGE}, {_STALENESS}, is_replaced, reason, first_text, agents, tools"
)


@dataclass(frozen=True, slots=True)
class EpisodeQuery:
    """Filters on episodes. A field that is None does not filter."""

    step: int | None = None
    group: str | None = None
    outcome: str | None = None
    agent: str | None = None
    tool: str | None = None
    text: str | None = None
    """Words that must all occur in the episode; the last one may be a prefix."""
    reward: tuple[float | None, float | None] = (None, None)
    """Minimum and maximum, both inclusive, as in all ranges. Rewards and advantages are compared as the page shows
    them."""
    reward_below: float | None = None
    """Exclusive: an upper edge of the histogram."""
    turns: tuple[float | None, float | None] = (None, None)
    advantage: tuple[float | None, float | None] = (None, None)
    """Of the mean over the episode's turns that have an advantage."""
    staleness_min: float | None = None
    is_eval: bool | None = None
    sort: Sort = "-num"


def find_episodes(index: EpisodeIndex, query: EpisodeQuery, *, offset: int, limit: int) -> dict[str, Any]:
    """A page of the matching episodes, their number, a histogram of their rewards and counts of their outcomes.

    The histogram ignores the filter on rewards, and the counts the filter on outcomes, as users choose these filters by
    them.
    """
    num_unread = index.num_unread  # read first, so that every episode missing below is counted here
    where, values = _where(query)
    outcomes = _outcomes(index, replace(query, outcome=None))
    if query.outcome is None:
        total = sum(outcomes.values())
    else:
        ((total,),) = index.rows(f"SELECT count(*) FROM episodes WHERE {where}", values)
    ((num_listed,),) = index.rows("SELECT count(*) FROM episodes")
    return {
        "total": total,
        "num_listed": num_listed,
        "num_unread": num_unread,
        "histogram": _histogram(index, replace(query, reward=(None, None), reward_below=None)),
        "outcomes": outcomes,
        "agents": _names(index, "agent"),
        "tools": _names(index, "tool"),
        "episodes": _page(index, where, values, query.sort, offset, limit),
    }


def find_groups(index: EpisodeIndex, *, step: int | None) -> list[dict[str, Any]]:
    """Groups in the order in which they began, with the rewards of their members. step: None: groups of the newest
    episodes of all steps."""
    where, values = _where(EpisodeQuery(step=step, is_eval=False))
    rows = index.rows(
        f"SELECT group_id, step, task_id, num, id, outcome, reward FROM episodes WHERE {where} AND is_replaced = 0 "
        "ORDER BY num DESC LIMIT ?",
        (*values, -1 if step is not None else _MOST_MEMBERS),
    )[::-1]
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows:
        groups.setdefault(row[0], []).append(row)
    return [_group(members) for members in groups.values()]


def find_failures(index: EpisodeIndex, *, most: int, newest: int = -1) -> list[dict[str, Any]]:
    """Failures of training episodes, grouped by cause, the most frequent first, each with its first episode; those of
    further causes together. newest: among so many of the newest training episodes; -1: among all."""
    marks = ", ".join("?" * len(KINDS))
    grouped = (
        "SELECT count(*) AS count, min(num) AS num, outcome FROM "
        "(SELECT num, outcome FROM episodes WHERE is_eval = 0 ORDER BY num DESC LIMIT ?) JOIN previews USING (num) "
        f"WHERE outcome IN ({marks}) GROUP BY outcome, failure ORDER BY count(*) DESC, min(num)"
    )
    asked = (newest, *KINDS, most)
    found = [_failure(index, *row) for row in index.rows(f"{grouped} LIMIT ?", asked)]
    rest = f"SELECT count(*), sum(count), min(num), outcome FROM ({grouped} LIMIT -1 OFFSET ?)"
    for num_kinds, *row in index.rows(rest, asked):
        if num_kinds:
            found.append({**_failure(index, *row), "reason": f"something else, of {num_kinds:,} kinds", "trace": ""})
    return found


def _failure(index: EpisodeIndex, count: int, num: int, outcome: str) -> dict[str, Any]:
    ((first, reason),) = index.rows("SELECT id, reason FROM episodes JOIN previews USING (num) WHERE num = ?", (num,))
    return {"outcome": outcome, "count": count, "reason": line_of(reason), "first": f"{first}@{num}", "trace": reason}


def first_with_fork(index: EpisodeIndex, reason: str) -> int | None:
    """Number of the first episode that forked for this reason. None: there is none."""
    ((num,),) = index.rows("SELECT min(num) FROM names WHERE kind = 'fork' AND name = ?", (reason,))
    return None if num is None else int(num)


def find_siblings(index: EpisodeIndex, group: str) -> list[dict[str, Any]]:
    rows = index.rows(
        "SELECT id, reward, outcome FROM episodes WHERE group_id = ? AND is_replaced = 0 ORDER BY id", (group,)
    )
    return [{"id": id_, "reward": reward, "outcome": outcome} for id_, reward, outcome in rows]


def find_attempts(index: EpisodeIndex, episode_id: str) -> list[dict[str, Any]]:
    """All attempts with this id, in order; all but the last are called `id@num`."""
    sql = "SELECT num, reward, outcome, is_replaced FROM episodes WHERE id = ? ORDER BY num"
    return [
        {"id": f"{episode_id}@{num}" if is_replaced else episode_id, "reward": reward, "outcome": outcome}
        for num, reward, outcome, is_replaced in index.rows(sql, (episode_id,))
    ]


def _page(
    index: EpisodeIndex, where: str, values: Sequence[object], sort: Sort, offset: int, limit: int
) -> list[dict[str, Any]]:
    column = _ORDER[sort.removeprefix("-")]
    order = f"{column} IS NULL, {column} {'DESC' if sort.startswith('-') else 'ASC'}, num DESC"
    # select the page by number first, so that wide rows are read only for that page
    page = f"SELECT num FROM episodes WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?"
    sql = f"SELECT {_EPISODE} FROM ({page}) JOIN episodes USING (num) LEFT JOIN previews USING (num) ORDER BY {order}"
    return [_as_json(row) for row in index.rows(sql, (*values, limit, offset))]


def episode_row(index: EpisodeIndex, num: int) -> dict[str, Any] | None:
    """The row of one episode, as in a page of episodes. None: it is not listed."""
    found = _page(index, "num = ?", (num,), "num", 0, 1)
    return found[0] if found else None


def _as_json(row: Sequence[Any]) -> dict[str, Any]:
    num, id_, step, group, task, is_eval, outcome, reward, num_turns, num_tokens, finished_at = row[:11]
    num_forks, advantage, staleness, is_replaced, reason, first_text, agents, tools = row[11:]
    return {
        "id": f"{id_}@{num}" if is_replaced else id_,
        "num": num,
        "step": step,
        "group_id": group,
        "task_id": task,
        "is_eval": bool(is_eval),
        "outcome": outcome,
        "reason": reason,
        "reward": reward,
        "num_turns": num_turns,
        "num_tokens": num_tokens,
        "num_forks": num_forks,
        "finished_at": finished_at,
        "agent": agents,
        "tools": tools,
        "advantage_mean": advantage,
        "staleness_max": staleness,
        "first_text": first_text,
    }


def _where(query: EpisodeQuery) -> tuple[str, list[object]]:
    """An SQL condition, and the values of its parameters."""
    parts: list[tuple[str, object]] = []
    equal = (("step", query.step), ("group_id", query.group), ("outcome", query.outcome), ("is_eval", query.is_eval))
    parts += [(f"{column} = ?", value) for column, value in equal if value is not None]
    ranges = (("reward", _shown(query.reward)), ("num_turns", query.turns), (_ADVANTAGE, _shown(query.advantage)))
    for column, (least, most) in (*ranges, (_STALENESS, (query.staleness_min, None))):
        parts += [(f"{column} >= ?", least)] if least is not None else []
        parts += [(f"{column} <= ?", most)] if most is not None else []
    parts += [("reward < ?", shown_from(query.reward_below))] if query.reward_below is not None else []
    for kind, name in (("agent", query.agent), ("tool", query.tool)):
        named = f"num IN (SELECT num FROM names WHERE kind = '{kind}' AND name = ?)"
        parts += [(named, name)] if name is not None else []
    if query.text is not None:
        words = search_words(query.text)
        parts.append(("num IN (SELECT rowid FROM texts WHERE texts MATCH ?)" if words else "? IS NULL", words or 0))
    return " AND ".join(condition for condition, _ in parts) or "1", [value for _, value in parts]


def _shown(bounds: tuple[float | None, float | None]) -> tuple[float | None, float | None]:
    least, most = bounds
    return (None if least is None else shown_from(least), None if most is None else shown_to(most))


def _histogram(index: EpisodeIndex, query: EpisodeQuery) -> dict[str, list[float]]:
    """A histogram of rewards as they are shown: edges of bins of equal width, of which the last includes its upper
    edge, and counts. The edges are those of all episodes, so that they do not move when a filter changes."""
    where, values = _where(query)
    # two queries, as each of min and max alone is answered from one end of the index
    ((least,),), ((most,),) = (index.rows(f"SELECT {end}(reward) FROM episodes") for end in ("min", "max"))
    if least is None or not (math.isfinite(least) and math.isfinite(most)):
        return {"edges": [], "counts": []}
    edges = _edges(least, most)
    bins = len(edges) - 1
    bin_of, bounds = _bin([shown_from(edge) for edge in edges], 0, bins - 1)
    sql = f"SELECT {bin_of} AS bin, count(*) FROM episodes WHERE ({where}) AND reward IS NOT NULL GROUP BY bin"
    found = dict(index.rows(sql, (*bounds, *values)))
    return {"edges": edges, "counts": [found.get(number, 0) for number in range(bins)]}


def _edges(least: float, most: float) -> list[float]:
    """Edges of bins of equal width from `least` or less to `most` or more: round numbers, which are shown as they
    are."""
    rough = (most - least) / _NUM_BINS or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    width = next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power >= rough * (1 - _ROUNDING))
    first, last = math.floor(least / width + _ROUNDING), math.ceil(most / width - _ROUNDING)
    return [float(f"{width * number:.12g}") for number in range(first, max(last, first + 1) + 1)]


def _bin(begins: Sequence[float], first: int, last: int) -> tuple[str, list[float]]:
    """SQL for the number of a reward's bin among `first` to `last`, and its parameters: a search by halves."""
    if first == last:
        return str(first), []
    middle = (first + last + 1) // 2
    (below, below_values), (above, above_values) = _bin(begins, first, middle - 1), _bin(begins, middle, last)
    sql = f"CASE WHEN reward < ? THEN {below} ELSE {above} END"
    return sql, [begins[middle], *below_values, *above_values]


def _outcomes(index: EpisodeIndex, query: EpisodeQuery) -> dict[str, int]:
    where, values = _where(query)
    return dict(index.rows(f"SELECT outcome, count(*) FROM episodes WHERE {where} GROUP BY outcome", values))


def _names(index: EpisodeIndex, kind: str) -> list[str]:
    # one index look-up for each name; `DISTINCT` would scan all episodes
    sql = (
        "WITH RECURSIVE found (name) AS (SELECT min(name) FROM names WHERE kind = ? UNION ALL SELECT (SELECT "
        "min(name) FROM names WHERE kind = ? AND name > found.name) FROM found WHERE found.name IS NOT NULL) "
        "SELECT name FROM found WHERE name IS NOT NULL LIMIT 200"
    )
    return [name for (name,) in index.rows(sql, (kind, kind))]


def _group(members: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    rewards = [reward for *_, reward in members if reward is not None]
    mean = math.fsum(rewards) / len(rewards) if rewards else None
    spread = math.sqrt(math.fsum((each - (mean or 0.0)) ** 2 for each in rewards) / len(rewards)) if rewards else None
    group, step, task = members[0][:3]
    return {
        "id": group,
        "step": step,
        "task_id": task,
        "num_members": len(members),
        "reward_mean": mean,
        "reward_std": spread,
        "flat": len(rewards) > 1 and are_equal(rewards),
        "episodes": [member[4] for member in members],
        "outcomes": [member[5] for member in members],
        "rewards": [member[6] for member in members],
    }
