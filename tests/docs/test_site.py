"""The site of `make docs`, without building it: every page is in its navigation once, and links lead where they say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("recipes/*/README.md")])
MADE = {"docs/reference.md"}  # by docs/site/reference.py, from docstrings

_FENCED = re.compile(r"^(`{3,}).*?^\1`*$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ +(.*?)\s*$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """Without its blocks of code."""
    return _FENCED.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """As GitHub and the site name a page's headings; a second one of the same words has -1."""
    found: dict[str, int] = {}
    names = set()
    for heading in _HEADING.findall(prose(page)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if name in found else name)
        found[name] = found.get(name, 0) + 1
    return names


def navigation(part: Any) -> Iterator[str]:
    """The pages of a part of the navigation, in order."""
    if isinstance(part, str):
        yield part
    else:
        for below in part.values() if isinstance(part, dict) else part:
            yield from navigation(below)


def test_every_page_is_in_the_navigation_exactly_once() -> None:
    settings = re.sub(r"!!python\S*|!ENV", "", (ROOT / "docs/site/mkdocs.yml").read_text())
    listed = list(navigation(yaml.safe_load(settings)["nav"]))
    assert sorted(listed) == sorted({*map(named, PAGES), *MADE})


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_where_they_say(page: Path) -> None:
    """Those to files of the repository and to their headings."""
    wrong = []
    for link in _LINK.findall(prose(page)):
        if re.match(r"https?:|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert not wrong


def test_pictures_are_small() -> None:
    for picture in ROOT.glob("docs/images/*"):
        assert picture.stat().st_size < 200_000, picture


def test_both_readmes_show_the_same_code() -> None:
    """And lead to the same places."""
    english, chinese = ((ROOT / name).read_text() for name in ("README.md", "README.zh.md"))
    assert [each[0] for each in _FENCED.finditer(chinese)] == [each[0] for each in _FENCED.finditer(english)]
    links = [sorted(set(_LINK.findall(page)) - {"README.md", "README.zh.md"}) for page in (english, chinese)]
    assert links[0] == links[1]
