"""`ludus rollout`: runs an agent on rows without training, and shows every turn."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from statistics import fmean
from typing import Annotated

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from typer import Argument, Option

from ludus.api.play import play
from ludus.api.rows import load_rows
from ludus.cli.console import Bar, counting, end
from ludus.cli.external import play_external
from ludus.cli.options import Model, Overrides
from ludus.cli.turns import TurnRow, rows_of_group
from ludus.compat.config import Config, load_config
from ludus.models.resolve import resolve_tokenizer
from ludus.runs.view import Decode, printable
from ludus.text.tokenizer import Tokenizer
from ludus.types import Episode, Group

_MAX_REPLY_CHARS = 400
_COLUMNS = {"tokens": "{}", "trained": "{}", "logprob": "{:.2f}", "reward": "{:.3g}", "advantage": "{:+.2f}"}
_SHADES = ((0.9, ""), (0.5, "yellow"), (0.1, "dark_orange"), (0.0, "red"))
"""Minimum probability of a token, and its colour."""


def rollout(
    agent: Annotated[str, Argument(metavar="AGENT", help="path/to/file.py:Name, or pkg.mod:Name.")],
    overrides: Overrides = None,
    data: Annotated[
        str, Option(metavar="ROWS", help="A .parquet, .jsonl, .json or .csv file; pkg.mod:function that returns rows.")
    ] = ...,  # type: ignore[assignment]
    model: Model = "smollm2-135m",
    n: Annotated[int, Option("--n", min=1, help="Episodes of each row; 2 or more have advantages.")] = 1,
    limit: Annotated[int | None, Option(min=1, help="Play only the first rows.")] = None,
    url: Annotated[str | None, Option(help="Play with the model behind this OpenAI-compatible URL.")] = None,
    api_key: Annotated[
        str, Option("--api-key", envvar="OPENAI_API_KEY", help="Key for --url.", show_default=False)
    ] = "none",
    as_json: Annotated[bool, Option("--json", help="Print one line of JSON an episode.")] = False,
) -> None:
    """Run an agent on rows without training, and show every turn.

    Each turn is shown with its tokens coloured by their probability, how
    many of them training would use or why it would not, their mean logprob,
    and the reward. Settings such as gconfig.temperature=0.7 may follow.

    [bold]Examples:[/]  ludus rollout my_agent.py:Agent --data rows.jsonl --n 4

      ludus rollout my_agent.py:Agent --data rows.jsonl \\
        --url https://api.openai.com/v1 --api-key $KEY
    """
    settings = [f"workflow={json.dumps(agent)}", f"model.path={json.dumps(model)}", f"gconfig.n_samples={n}"]
    config = load_config(None, [*settings, *(overrides or ())])
    rows = list(load_rows(data, "--data"))[:limit]
    console = Console()
    watched = console if console.is_terminal else Console(stderr=True)
    with counting("episodes", len(rows) * config.gconfig.n_samples, console=watched) as bar:
        show = _Show(console, config, bar, as_json=as_json)
        if url is None:
            play(None, rows, config=config, on_episode=show.add_local)
        else:
            play_external(config, rows, url=url, api_key=api_key, on_episode=show.add)
    if not as_json:
        console.print(_totals(show.episodes))
    end(not all(episode.outcome.kind in ("failed", "timeout") for episode in show.episodes))


class _Show:
    """Prints episodes as they end."""

    def __init__(self, console: Console, config: Config, bar: Bar, *, as_json: bool) -> None:
        self.episodes: list[Episode] = []
        self._console, self._config, self._bar, self._as_json = console, config, bar, as_json
        self._groups: dict[str, list[Episode]] = {}

    def add(self, episode: Episode, turns: Sequence[TurnRow]) -> None:
        """Print an episode that does not depend on others."""
        self._bar.advance()
        self._print(episode, turns)

    def add_local(self, episode: Episode) -> None:
        """Print all episodes of the row when the last of them has ended, as advantages compare all of them."""
        self._bar.advance()
        members = self._groups.setdefault(episode.group_id, [])
        members.append(episode)
        if len(members) == self._config.gconfig.n_samples:
            group = Group(episode.group_id, episode.task_id, tuple(self._groups.pop(episode.group_id)))
            for member, turns in rows_of_group(group, self._config, self._decode):
                self._print(member, turns)

    @cached_property
    def _decode(self) -> Decode:
        return Tokenizer.load(resolve_tokenizer(self._config.model.path)).decode

    def _print(self, episode: Episode, turns: Sequence[TurnRow]) -> None:
        if episode.outcome.kind == "cancelled":
            return  # the command was interrupted while it played
        self.episodes.append(episode)
        if self._as_json:
            self._console.print(json.dumps(_body(episode, turns)), highlight=False, markup=False, soft_wrap=True)
        else:
            self._console.print(_table(episode, turns))


def _table(episode: Episode, turns: Sequence[TurnRow]) -> Table:
    reward = "no reward" if episode.reward is None else f"reward {episode.reward:.4g}"
    metrics = "".join(f"  {name} {value:.4g}" for name, value in episode.metrics.items())
    columns = [Column("turn", justify="right"), Column("reply", ratio=1, overflow="fold")]
    columns += [Column(name, justify="right", no_wrap=True) for name in _COLUMNS]
    table = Table(
        *columns,
        title=f"[bold]{episode.id}[/]  {episode.outcome.kind}  {reward}{metrics}",
        title_justify="left",
        caption=Text(printable(episode.outcome.reason)) if episode.outcome.reason else None,
        caption_justify="left",
        header_style="dim",
        border_style="dim",
        box=SIMPLE_HEAD,
        pad_edge=False,
        expand=True,
    )
    for turn in turns:
        table.add_row(str(turn.number), _reply(turn), *_cells(turn))
        if turn.note:
            table.add_row("", Text(printable(turn.note), style="dim italic"))
    return table


def _cells(turn: TurnRow) -> Iterator[str]:
    values = (turn.num_tokens, turn.num_trained, turn.mean_logprob, turn.reward, turn.advantage)
    for value, form in zip(values, _COLUMNS.values(), strict=True):
        yield "–" if value is None or math.isnan(value) else form.format(value)


def _reply(turn: TurnRow) -> Text:
    if not turn.tokens:
        return Text(printable(turn.reply[:_MAX_REPLY_CHARS]))
    text = Text()
    for token in turn.tokens:
        shade = next(style for least, style in _SHADES if token.probability >= least)
        text.append(printable(token.text.replace("\n", "⏎")), style=shade)
    text.truncate(_MAX_REPLY_CHARS, overflow="ellipsis")
    return text


def _totals(episodes: Sequence[Episode]) -> str:
    rewards = [episode.reward for episode in episodes if episode.reward is not None]
    parts = [f"[bold]{len(episodes)}[/] episodes"]
    parts += [f"mean reward [bold]{fmean(rewards):.4g}[/]"] if rewards else []
    successes = [episode.metrics["success"] for episode in episodes if "success" in episode.metrics]
    parts += [f"success [bold]{fmean(successes):.1%}[/]"] if successes else []
    failed = sum(not episode.outcome.has_credit for episode in episodes)
    parts += [f"[red]{failed} without credit[/]"] if failed else []
    return ", ".join(parts)


def _body(episode: Episode, turns: Sequence[TurnRow]) -> dict[str, object]:
    return {
        "episode": episode.id,
        "task": episode.task_id,
        "outcome": episode.outcome.kind,
        "reason": episode.outcome.reason,
        "reward": episode.reward,
        "metrics": dict(episode.metrics),
        "turns": [asdict(turn) for turn in turns],
    }
