"""A run in Markdown says what its page says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from ludus.runs.report import report_text
from ludus.runs.store import RunStore
from ludus.types import Episode, Outcome


def test_it_says_what_came_of_the_run(make_run: Callable[..., RunStore]) -> None:
    """Rewards before and after, where curves began and ended, where tokens went."""
    with make_run(num_steps=6) as run:
        run.write_summary({"success_before": 0.03, "success_after": 0.78, "ledger": None})
        text, rows = report_text(run), [numbers for _, numbers in run.metrics()]
    assert "| success | 0.03 | 0.78 |" in text
    assert f"| train/entropy | {rows[0]['train/entropy']:.4g} | {rows[-1]['train/entropy']:.4g} |" in text
    assert f"| trained | {int(sum(numbers['ledger/trained'] for numbers in rows)):,} |" in text


def test_what_failed_is_named(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    """How often, and the last line of why; it is text, whatever it has of Markdown and HTML."""
    with RunStore.create(tmp_path, "a_run", "") as run:
        for number in range(6):
            reason = f"Traceback\n  move {number}\nValueError: <b>no</b> | *move* {number}"
            failed = replace(make_episode(number, reward=None), outcome=Outcome("failed", reason))
            run.add_episode(failed, step=1)
        shown = MarkdownIt("commonmark").enable("table").render(report_text(run))
    assert "<h1>a_run</h1>" in shown and "<b>" not in shown
    assert "<li>6 x failed: ValueError: &lt;b&gt;no&lt;/b&gt; | *move* 0</li>" in shown


def test_a_run_without_a_step(tmp_path: Path) -> None:
    """It is named, and nothing else is said."""
    with RunStore.create(tmp_path, "run", "") as run:
        text = report_text(run)
    assert text.startswith("# run\n") and "##" not in text


@pytest.mark.parametrize("num_steps", [1, 3])
def test_tables_are_tables(make_run: Callable[..., RunStore], num_steps: int) -> None:
    """Each row has as many cells as its head."""
    with make_run(num_steps=num_steps) as run:
        text = report_text(run)
    for section in text.split("## ")[1:]:
        rows = [line for line in section.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in rows}) <= 1
