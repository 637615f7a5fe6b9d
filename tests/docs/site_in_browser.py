"""The site that `make docs` built, opened from disk in a real browser (`make check-docs`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs.browser import CHROMIUM, Browser

SITE = Path(__file__).parents[2] / "build" / "site"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_every_page_opens_and_the_search_finds_without_a_network(tmp_path: Path) -> None:
    """Nothing but files of the site is asked for, and no page complains."""
    assert (SITE / "index.html").exists(), "make docs builds it"
    with Browser(tmp_path) as browser:
        for page in sorted(set(SITE.rglob("*.html")) - {SITE / "404.html"}):  # a server's own
            browser.open(page.as_uri())
            browser.wait_until(f"location.href.startsWith('{page.as_uri()}') && document.readyState === 'complete'")
        browser.open((SITE / "index.html").as_uri())
        browser.wait_for("Your own agent")
        browser.click_on("[data-md-component=search-query]")
        browser.press(*"staleness")
        browser.wait_until("document.querySelectorAll('.md-search-result__item').length > 0")
        assert "Rollout" in browser.text
        browser.click_on(".md-search-result__link")
        browser.wait_until("!location.href.endsWith('index.html') && document.readyState === 'complete'")
        assert browser.complaints == []
        outside = [
            each for each in browser.requests if not each.startswith((SITE.as_uri(), "data:", "blob:", "about:"))
        ]
        assert outside == []
