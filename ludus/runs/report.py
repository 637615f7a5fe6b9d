"""Writes the report of a run: one self-contained HTML page, and its reward curve as a PNG.

Knows: the live page and its routes.  Knows not: how the numbers were measured.
The page is the live one with its data included: curves, health and ledger of the whole run, a list of the newest
episodes, and some episodes with every turn and token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from ludus.processes.files import write_whole
from ludus.runs.digest import digest
from ludus.runs.plot import Series, write_reward_png
from ludus.runs.store import RunStore
from ludus.runs.view import Decode
from ludus.runs.watch.compare import compare_runs
from ludus.runs.watch.encode import finite_only, to_json
from ludus.runs.watch.page import one_file
from ludus.runs.watch.query import EpisodeQuery
from ludus.runs.watch.run import WatchedRun

MOST_LISTED = 1_000
"""Episodes in the list, half a kilobyte each."""
MOST_STEPS = 50
"""Newest steps that are shown with their groups."""
MOST_BRANCHES = 20
"""Newest branches, which are shown with their tokens."""
MOST_TOKENS = 60_000
"""Tokens, prompts included, of episodes that are shown turn by turn; their messages may have as many again."""
_TOKEN_BYTES = 100
_NUM_SHOWN = 3
"""Episodes shown turn by turn from each of: the best, the worst, the newest, the failed."""


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """The files that were written."""

    html: Path
    png: Path | None
    """None: the run has no reward to draw yet."""


def write_report(run: RunStore, *, decode: Decode | None = None) -> ReportFiles:
    """Write `report.html` and `reward.png` into the run's folder.

    decode: returns the text of token ids. None: that of the run's model; without the model, ids are shown.
    Raises UserError without matplotlib.
    """
    page, curves = _drawn(run, decode)
    html = run.folder / "report.html"
    write_whole(html, page)
    if not curves:
        return ReportFiles(html, None)
    png = run.folder / "reward.png"
    write_reward_png(png, curves, title=run.name)
    return ReportFiles(html, png)


def report_page(run: RunStore, *, decode: Decode | None = None) -> str:
    """The HTML page, without writing it to a file; otherwise as `write_report`."""
    return _drawn(run, decode)[0]


def report_text(run: RunStore, *, decode: Decode | None = None) -> str:
    """The report in Markdown, without writing it to a file; decode as in `write_report`."""
    with closing(_watched(run, decode)) as watched:
        return digest(watched)


def _watched(run: RunStore, decode: Decode | None) -> WatchedRun:
    """The run, once the episodes that a report lists have been read."""
    watched = WatchedRun(run.folder, run.name, decode=decode)
    watched.wait(num_read=MOST_LISTED)
    return watched


def _drawn(run: RunStore, decode: Decode | None) -> tuple[str, tuple[Series, ...]]:
    """The page, and the curves of its picture."""
    with closing(_watched(run, decode)) as watched:
        return one_file(finite_only(report_data(watched))), _learning_curves(watched)


def report_data(run: WatchedRun) -> dict[str, Any]:
    """The answers that the live page would get, by route."""
    overview = run.overview()
    name = f"/api/runs/{_part(run.id)}"
    outline = {key: overview[key] for key in ("id", "name", "path", "state", "num_steps", "updated_at")}
    branches = run.branches.listed()[:MOST_BRANCHES]
    listed = run.episodes(EpisodeQuery(), offset=0, limit=MOST_LISTED)
    data = {
        "/api/runs": {"runs": [{**outline, "reward": overview["reward"], "success": overview["success"]}]},
        name: {**overview, "num_branches": len(branches)},
        f"{name}/metrics": run.metrics([]),
        f"{name}/health": run.health(),
        f"{name}/ledger": run.ledger(),
        f"{name}/failures": run.failures(),
        f"{name}/forks": run.forks(),
        f"{name}/groups": run.groups(None),
        f"{name}/branches": {"branches": branches},
        **{f"{name}/branches/{each['id']}": run.branches.one(each["id"]) for each in branches},
        f"{name}/episodes": listed,
        **_comparison(run, overview["evaluations"]),
    }
    for step in overview["steps"][-MOST_STEPS:]:
        data[f"{name}/steps/{step}"] = run.step(step)
    room = MOST_TOKENS
    for row in _shown(run):
        of_episode, taken = _episode_data(run, f"{name}/episodes/{_part(row['id'])}", row["id"], room=room)
        data |= of_episode
        room -= taken
    known = {row["id"] for row in listed["episodes"]}
    listed["episodes"] += [row for row in _shown(run) if row["id"] not in known]
    return data


def _comparison(run: WatchedRun, evaluations: list[int]) -> dict[str, Any]:
    """The first evaluation beside the last one, to which the page has a link; empty if there are not two."""
    if len(evaluations) < 2:
        return {}
    name = quote_plus(run.id, safe="*").replace("~", "%7E")  # as by the page's `URLSearchParams`
    asked = f"a={name}&b={name}&step_a={evaluations[0]}"
    return {f"/api/compare?{asked}": compare_runs(run, evaluations[0], run, None)}


def _shown(run: WatchedRun) -> Iterator[dict[str, Any]]:
    """Rows of the episodes that are shown turn by turn: some of each kind that readers look for first."""
    asked = (
        EpisodeQuery(is_eval=False, sort="-reward"),
        EpisodeQuery(is_eval=False, sort="reward"),
        EpisodeQuery(outcome="failed"),
        EpisodeQuery(outcome="timeout"),
        EpisodeQuery(is_eval=True),
        EpisodeQuery(),
    )
    seen: set[str] = set()
    for query in asked:
        for row in run.episodes(query, offset=0, limit=_NUM_SHOWN)["episodes"]:
            if row["id"] not in seen and row["num_turns"]:
                seen.add(row["id"])
                yield row


def _episode_data(run: WatchedRun, name: str, episode_id: str, *, room: int) -> tuple[dict[str, Any], int]:
    """The episode's answers by route, as far as they fit into `room` tokens, prompts included, and the tokens used. The
    messages are included as a whole or not at all, the tokens turn by turn."""
    episode = run.episode(episode_id)
    taken = len(to_json(episode)) // _TOKEN_BYTES
    if taken > room:
        return {}, 0
    data: dict[str, Any] = {name: episode}
    for turn in episode["turns"]:
        total = (turn["num_prompt_tokens"] or 0) + (turn["num_sampled_tokens"] or 0)
        if taken + total <= room:
            tokens = run.tokens(episode_id, turn["id"], offset=0, limit=max(1, total))
            data[f"{name}/turns/{_part(turn['id'])}/tokens"] = tokens
            taken += total
    return data, taken


_LEARNING = (
    ("rollout/reward", "reward", False),
    ("rollout/success", "success", False),
    ("eval/success", "success, held out", True),
    ("eval/reward", "reward, held out", True),
)
"""Name of the metric, title of its curve, and whether it is measured in some steps only."""


def _learning_curves(run: WatchedRun) -> tuple[Series, ...]:
    wholes = (("rollout/reward/", "reward", False), ("eval/success/", "success, held out", True))
    by_source = [
        (name, f"{title}: {name.removeprefix(whole)}", is_dotted)
        for whole, title, is_dotted in wholes
        for name in run.curves.names
        if name.startswith(whole)
    ]
    found = (
        Series(title, tuple((float(step), value) for step, value in run.curves.points(name)), colour % 6, is_dotted)
        for colour, (name, title, is_dotted) in enumerate((*_LEARNING, *by_source))
    )
    return tuple(one for one in found if one.points)


def _part(text: str) -> str:
    """A part of a route, encoded as by the page's `encodeURIComponent`."""
    return quote(text, safe="-_.!~*'()")
