"""What a model, an agent or a stranger's run may say, in the page of a report and on a terminal: it is data there."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ludus.api.live import LivePanel, PlainLines
from ludus.runs.failures import Failures
from ludus.runs.report import report_page
from ludus.runs.store import RunStore
from ludus.types import Episode, Message, Outcome, ToolCall
from tests.runs.conftest import episode_of

TEXTS = {
    "an end of the script": "</script><script>alert(1)</script>",
    "an end of the script, spelled oddly": "</ScRiPt\t\n/><script src=//evil.example></script>",
    "an end of the style": "</style><svg onload=alert(1)>",
    "an image": "<img src=x onerror=alert(1)>",
    "a frame": "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "a comment that is not closed": "<!--<script>",
    "character data": "]]><script>alert(1)</script>",
    "an end of the data": '"}]}\\"}</script><script>alert(1)</script>',
    "a reference": "&lt;/script&gt;&#60;script&#62;alert(1)",
    "a link": "[here](javascript:alert(1)) javascript:alert(1)",
    "a template": "${alert(1)}{{constructor.constructor('alert(1)')()}}",
    "separators of lines": "\u2028alert(1)\u2029",
    "half a character": "\ud83d</script>",
    "a byte of nothing": "\x00</script>\x00<script>alert(1)",
    "marks of direction": "\u202e</script>\u2066",
    "control of a terminal": "\x1b]0;alert\x07\x1b[2J</script>",
    "a base": '<base href="http://evil.example/"><meta http-equiv=refresh content="0;url=http://evil.example">',
}


class Tags(HTMLParser):
    """Elements of a page with their attributes, and what stands in its block of data."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.data = ""
        self._is_inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(attrs)))
        self._is_inside = ("id", "ludus-data") in attrs

    def handle_endtag(self, tag: str) -> None:
        self._is_inside = False

    def handle_data(self, data: str) -> None:
        self.data += data if self._is_inside else ""


def saying(text: str) -> Episode:
    """An episode in which everything that others may choose is this text."""
    episode = episode_of(5, num_turns=1)
    (turn,) = episode.session.turns
    call = ToolCall(text, text, json.dumps({text: text}))
    turn = replace(
        turn,
        messages=(Message("system", text), Message("user", text), Message("tool", text, tool_call_id=text, name=text)),
        reply=Message("assistant", text, tool_calls=(call,), reasoning=text),
        agent=text,
    )
    return replace(
        episode,
        session=replace(episode.session, turns=(turn,)),
        outcome=Outcome("failed", text),
        task_id=text,
        group_id=text,
        metrics={text: 1.0},
        metadata={text: {text: [text]}},
    )


def page_with(folder: Path, text: str) -> str:
    with RunStore.create(folder, "run", f"name: run\nworkflow: {json.dumps(text)}\n") as run:
        run.add_episode(saying(text), step=1)
        run.add_metrics(1, {f"rollout/{text}": 1.0})
        return report_page(run, decode=lambda ids: text * len(list(ids)))


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_data(name: str, tmp_path: Path) -> None:
    """The page has the elements that one of harmless texts has, and its data can be read and has the text."""
    text = TEXTS[name]
    page = Tags(page_with(tmp_path / "tried", text))
    harmless = Tags(page_with(tmp_path / "harmless", "harmless"))
    assert page.found == harmless.found
    data: dict[str, Any] = json.loads(page.data)
    episode = data["/api/runs/run/episodes/ep-5"]
    assert episode["metadata"] == {text: {text: [text]}} and episode["turns"][0]["reply"]["content"] == text
    assert ("http-equiv", "Content-Security-Policy") in {pair for _, pairs in page.found for pair in pairs}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_moves_no_cursor(name: str) -> None:
    """On a terminal it says what it is: no title, no clipboard, no line above it is changed by it."""
    counted = Failures()
    counted.add(saying(TEXTS[name]))
    failures = counted.groups()
    for shows in (PlainLines, LivePanel):
        console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=200)
        if shows is PlainLines:
            PlainLines(console).on_failures(failures)
        else:
            panel = LivePanel(console, "run")
            panel.stop()
            panel.on_failures(failures)
            console.file = io.StringIO()
            console.print(panel.render())
        written = console.file.getvalue()  # type: ignore[attr-defined]
        assert "episode" in written and not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", written), repr(written)
