"""The files of the page, and the page as one file."""

from __future__ import annotations

import json
import re

import pytest

from ludus.runs.watch.page import STATIC, one_file

_AWAY = re.compile(r"""(?:https?:)?//(?!www\.w3\.org/)[a-z0-9.-]+\.[a-z]{2,}""")


def test_nothing_of_the_page_leads_away_from_its_server() -> None:
    """No file names another host, and no script or style stands inside index.html, which the server forbids."""
    for name in ("index.html", "app.js", "app.css", "icon.svg"):
        assert not _AWAY.search((STATIC / name).read_text("utf-8")), name
    index = (STATIC / "index.html").read_text("utf-8")
    assert re.findall(r'(?:src|href)="([^"]+)"', index) == ["/static/icon.svg", "/static/app.css", "/static/app.js"]
    assert not re.search(r"<style|<script(?! src=)| on[a-z]+=| style=", index)
    assert "Permission is hereby granted" in (STATIC / "licenses.txt").read_text("utf-8")


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<!-- <script>", "\ud800 half", "数字 \u2028"])
def test_data_in_one_file_come_back_as_they_were(text: str) -> None:
    """Whatever an episode says, it neither ends the data nor the page."""
    html = one_file({"/api/runs": {"runs": [text]}})
    [data] = re.findall(r'<script type="application/json" id="ludus-data">(.*?)</script>', html, re.DOTALL)
    assert json.loads(data) == {"/api/runs": {"runs": [text]}}
    assert html.count("</script>") == 2 and html.encode("utf-8")
    assert "/static/" not in html and "default-src 'none'" in html


def test_a_number_that_json_has_not_is_refused() -> None:
    """The page could not read it."""
    with pytest.raises(ValueError, match="JSON"):
        one_file({"/api/runs": float("nan")})
