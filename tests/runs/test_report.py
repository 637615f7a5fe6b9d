"""The report shows the run's own numbers, and needs nothing but itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ludus.runs.report import write_report
from ludus.runs.store import RunStore
from ludus.types import Episode


def _decode(ids: Sequence[int]) -> str:
    return "".join(f"<w{token}>" for token in ids)


def test_the_page_is_self_contained(make_run: Callable[..., RunStore]) -> None:
    """No script, style sheet, font or picture is fetched from anywhere."""
    with make_run(num_steps=6) as run:
        html = write_report(run).html.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)\s*=|@import|url\(|https?://""", html)


def test_the_page_shows_what_the_run_recorded(make_run: Callable[..., RunStore]) -> None:
    """Success, ledger totals, the three episodes and every metric's name are on the page."""
    with make_run(num_steps=6) as run:
        known = {"success_before": 0.03, "success_after": 0.78, "train_seconds": 75, "peak_rss_mb": 2310}
        run.write_summary({**known, "ledger": None})
        files = write_report(run, decode=_decode)
        html = files.html.read_text(encoding="utf-8")
        sampled = sum(metrics["ledger/sampled"] for _, metrics in run.metrics())
    for text in ("78%", "before training 3%", "1 min 15 s", "2.31 GB", f"{sampled:,.0f}", "balanced", "zero advantage"):
        assert text in html, text
    assert all(title in html for title in ("Best episode", "Worst episode", "A random episode", "grad norm"))
    assert files.png is not None and files.png.exists()


def test_the_ledger_is_that_of_the_summary(make_run: Callable[..., RunStore]) -> None:
    """Tokens of evaluations and unused ones are on the page as they are in summary.json."""
    ledger = {"sampled": 24_001, "trained": 20_000, "masked": {"evaluation": 3_000, "unused": 1_001}}
    with make_run(num_steps=2) as run:
        run.write_summary({"ledger": ledger})
        html = write_report(run).html.read_text(encoding="utf-8")
    assert all(text in html for text in ("24,001", "20,000", "masked: evaluation", "3,000", "masked: unused", "1,001"))
    assert "balanced" in html


def test_before_the_end_the_ledger_counts_evaluations_too(
    make_run: Callable[..., RunStore], make_episode: Callable[..., Episode]
) -> None:
    """While a run trains, the page adds the tokens of evaluations that are in the store to those of the steps."""
    played = make_episode(900, is_eval=True)
    with make_run(num_steps=2) as run:
        run.add_episode(played, step=1)
        html = write_report(run).html.read_text(encoding="utf-8")
        sampled = sum(metrics["ledger/sampled"] for _, metrics in run.metrics()) + played.session.num_sampled_tokens
    assert "masked: evaluation" in html and f"{sampled:,.0f}" in html and "balanced" in html


def test_each_sampled_token_carries_its_numbers(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    """Hovering over a token names its id, logprob, version and what training did with it."""
    episode = make_episode(5, num_turns=1, version=4)
    turn = episode.session.turns[0]
    with RunStore.create(tmp_path, "run", "") as run:
        run.add_episode(episode, step=2)
        run.add_credit(2, {turn.id: "kept_set"})
        html = write_report(run, decode=_decode).html.read_text(encoding="utf-8")
    assert html.count('class="t"') == len(turn.sampled.token_ids) + 4  # four more explain the shades
    token, logprob = turn.sampled.token_ids[0], turn.sampled.logprobs[0]
    assert f"id {token} · logprob {logprob:.4f}" in html
    assert "version 4 · masked: kept_set" in html


def test_text_of_agents_cannot_break_the_page(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    """Markup in messages, tokens and the run's configuration is shown, not run."""
    with RunStore.create(tmp_path, "run", "name: <script>alert(1)</script>") as run:
        run.add_episode(make_episode(5, metadata={}), step=0)
        html = write_report(run, decode=lambda ids: "<script>alert(2)</script>" * len(ids)).html.read_text("utf-8")
    assert "<script>" not in html


def test_an_empty_run_has_a_page(tmp_path: Path) -> None:
    """A run that has not made a step yet is reported, without a curve."""
    with RunStore.create(tmp_path, "run", "") as run:
        files = write_report(run)
    assert files.html.exists() and files.png is None
