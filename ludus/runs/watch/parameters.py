"""Parses the query parameters of the page's routes.

Knows: query strings.  Knows not: routes, runs.
Invariant: any input gives either a value within bounds or an AgentError for the sender.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ludus.errors import AgentError
from ludus.http.numbers import read_count, read_number
from ludus.runs.watch.query import SORTS, EpisodeQuery

MOST_EPISODES, MOST_TOKENS, MOST_NAMES = 1_000, 20_000, 500
_MOST_CHARS = 500
_EPISODES = (
    *("step", "group", "outcome", "agent", "tool", "q", "reward_min", "reward_max", "turns_min", "turns_max"),
    *("reward_below", "advantage_min", "advantage_max", "stale_min", "eval", "sort", "offset", "limit"),
)

Parameters = Mapping[str, str]


def check_known(given: Parameters, known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            raise AgentError(f"Unknown parameter {name[:40]!r}. Known: {', '.join(known) or 'none'}.", param=name[:40])


def count(given: Parameters, name: str, default: int | None = None, *, most: int | None = None) -> int | None:
    """A number of 0 or more; `default` if missing or empty. Raises AgentError if it is invalid or above `most`."""
    text = given.get(name, "")
    if not text:
        return default
    value = read_count(text, name)
    if most is not None and value > most:
        raise AgentError(f"Invalid value for {name!r}: {value}. Allowed: at most {most}.", param=name)
    return value


def page(given: Parameters, *, default: int, most: int) -> tuple[int, int]:
    """Offset and limit."""
    offset, limit = count(given, "offset", 0), count(given, "limit", default, most=most)
    assert offset is not None and limit is not None, "both have defaults"
    return offset, limit


def names(given: Parameters) -> list[str]:
    found = [name for name in given.get("names", "").split(",") if name]
    if len(found) > MOST_NAMES:
        raise AgentError(f"'names' has {len(found)} of them; ask for at most {MOST_NAMES} at a time.", param="names")
    return found


def episode_query(given: Parameters) -> tuple[EpisodeQuery, int, int]:
    """The query, offset and limit."""
    check_known(given, _EPISODES)
    sort = given.get("sort") or "-num"
    if sort not in SORTS:
        raise AgentError(f"Invalid value for 'sort': {sort[:40]!r}. Allowed: {', '.join(SORTS)}.", param="sort")
    is_eval = given.get("eval", "")
    if is_eval not in ("", "0", "1"):
        raise AgentError(f"Invalid value for 'eval': {is_eval[:40]!r}. Allowed: 0, 1.", param="eval")
    query = EpisodeQuery(
        step=count(given, "step"),
        group=_text(given, "group"),
        outcome=_text(given, "outcome"),
        agent=_text(given, "agent"),
        tool=_text(given, "tool"),
        text=_text(given, "q"),
        reward=_range(given, "reward"),
        reward_below=_number(given, "reward_below"),
        turns=_range(given, "turns"),
        advantage=_range(given, "advantage"),
        staleness_min=_number(given, "stale_min"),
        is_eval=None if is_eval == "" else is_eval == "1",
        sort=sort,
    )
    return query, *page(given, default=100, most=MOST_EPISODES)


def _text(given: Parameters, name: str) -> str | None:
    text = given.get(name, "")
    if len(text) > _MOST_CHARS:
        raise AgentError(f"{name!r} has {len(text)} characters; allowed: at most {_MOST_CHARS}.", param=name)
    return text or None


def _number(given: Parameters, name: str) -> float | None:
    text = given.get(name, "")
    return read_number(text, name) if text else None


def _range(given: Parameters, name: str) -> tuple[float | None, float | None]:
    return _number(given, f"{name}_min"), _number(given, f"{name}_max")
