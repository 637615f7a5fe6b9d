"""The page of `web/` in a real browser: what it does when something breaks, and with any keyboard."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from ludus.errors import UserError
from ludus.runs.report import report_page
from ludus.runs.store import RunStore
from ludus.runs.watch import app
from ludus.runs.watch.events import events_of
from ludus.runs.watch.folder import RunsFolder
from ludus.runs.watch.position import Position
from ludus.runs.watch.run import WatchedRun
from ludus.runs.watch.server import open_watcher
from ludus.types import Message
from tests.runs.browser import Browser, Page
from tests.runs.conftest import decode, episode_of
from tests.runs.watch.big_run import write_long_run
from tests.runs.watch.conftest import NUM_STEPS, write_run

pytestmark = pytest.mark.timeout(300)

_BACK_S = 60.0  # pauses grow to half a minute
_STEP = "document.querySelector('[data-live=step]')?.innerText"
_TOTAL = "document.querySelector('[data-total]')?.dataset.total"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture(autouse=True)
def nobody_else_is_asked(page: Browser) -> Iterator[None]:
    """Whatever a test does, no request leaves the machine."""
    page.requests.clear()
    yield
    page.text  # noqa: B018 # events that are on their way come with the answer
    own = ("http://127.0.0.1:", "about:", "data:", "file:")
    assert [url for url in page.requests if not url.startswith(own)] == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path)


@contextmanager
def watching(folder: Path, *, port: int = 0, key: str | None = None) -> Iterator[tuple[str, int, str]]:
    """A watcher of a run's folder, or of one with runs: its link, port and key."""
    with open_watcher(RunsFolder(folder), port=port, key=key) as link:
        yield link, urlsplit(link).port or 0, parse_qs(urlsplit(link).query)["key"][0]


def show(page: Browser, link: str, place: str, *texts: str) -> None:
    page.open("about:blank")
    page.open(link.partition("#")[0] + "#/" + place)
    page.wait_for(*texts)


def press(page: Browser, **event: object) -> None:
    """A key as a keyboard of another script, or an input method, gives it to the page."""
    script = (
        f"document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {json.dumps(event | {'bubbles': True})}))"
    )
    page.run(script)


def test_a_page_whose_server_went_away_goes_on_when_it_is_back(page: Browser, folder: Path) -> None:
    """It says so, keeps what it shows, tries again by itself, and then has the steps, the episodes and what is wrong
    with them that came meanwhile, without being loaded anew."""
    with watching(folder) as (link, port, key):
        show(page, link, "run/run", "Curves", "Ended badly", "KeyError: no such question")
        page.wait_until(f"{_STEP} === '{NUM_STEPS - 1}'")
        page.wait_until("document.querySelector('.chart canvas')")
        page.run("window.isSame = true")
    page.wait_for("The server does not answer", "asked again in", "Try now", "Curves")
    with RunStore.open(folder) as store:
        store.add_metrics(NUM_STEPS, {"rollout/reward": 0.125, "train/entropy": 0.5})
        store.add_episode(episode_of(7000, kind="timeout"), step=NUM_STEPS)
    with watching(folder, port=port, key=key):
        page.wait_until(f"{_STEP} === '{NUM_STEPS}'", _BACK_S)
        page.wait_for("timeout")
        assert "The server does not answer" not in page.text and page.run("window.isSame")


def test_a_step_between_the_page_and_its_stream_is_not_missed(
    page: Browser, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes after the page was read and before its stream begins is asked for when the stream says how far the run
    is; so is what comes while a proxy, which closes streams at once, is between them."""
    may_begin = threading.Event()

    async def begun_late(run: WatchedRun, heard: Position | None) -> AsyncIterator[bytes]:
        await asyncio.to_thread(may_begin.wait)
        stream = events_of(run, heard)
        for _ in range(2):
            yield await anext(stream)

    monkeypatch.setattr(app, "events_of", begun_late)
    with watching(folder) as (link, _, _):
        show(page, link, "run/run", "Curves")
        page.wait_until(f"{_STEP} === '{NUM_STEPS - 1}'")
        for step in (NUM_STEPS, NUM_STEPS + 1):
            with RunStore.open(folder) as store:
                store.add_metrics(step, {"rollout/reward": 0.25})
            may_begin.set()
            page.wait_until(f"{_STEP} === '{step}'", _BACK_S)


def test_a_page_whose_key_is_no_longer_good_says_where_the_new_one_is(page: Browser, folder: Path) -> None:
    """When the new link is opened beside it, it goes on."""
    with watching(folder) as (link, port, _):
        show(page, link, "run/run/episodes", "episodes", "task-")
    with watching(folder, port=port) as (new_link, _, _):
        page.wait_for("does not take this page's key", "Open the link that it printed")
        with page.new_page() as beside:
            beside.open(new_link)
            beside.wait_for("Curves")
        page.wait_until("!document.querySelector('.lost')", _BACK_S)
        page.press("f")
        page.wait_until(f"Number({_TOTAL}) > 0 && location.hash.includes('outcome=failed')")


def test_a_view_that_could_not_be_read_can_be_tried_again(
    page: Browser, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part that lacks its data says so in its place, and the rest is there."""

    def broken(*_: object, **__: object) -> Any:
        raise UserError("the disk does not answer")

    names = ("health", "ledger", "failures", "metrics", "episodes", "tokens")
    for name in names:
        monkeypatch.setattr(WatchedRun, name, broken)
    with watching(folder) as (link, _, _):
        show(
            page, link, "run/run", "Without the run's health: the disk does not answer", "Without the ledger of tokens"
        )
        page.wait_for(
            "Without the times of the steps", "Without what ended badly", "Without the curves", "Configuration"
        )
        assert page.run("document.querySelectorAll('.error button').length") >= 5
        page.run("location.hash = '#/run/run/steps'")
        page.wait_for("Without the steps: the disk does not answer")
        page.run("location.hash = '#/run/run/episodes'")
        page.wait_for("Without the episodes: the disk does not answer")
        page.run("location.hash = '#/run/run/episode/ep-1/tokens'")
        page.wait_for("0 of its tokens are here, the rest is not: the disk does not answer")
        monkeypatch.undo()
        page.click("Try again")
        page.wait_until("document.querySelector('.tok.sampled')")
        page.run("location.hash = '#/run/run'")
        page.wait_for("Ended badly", "= trained + masked")
        assert "Without" not in page.text
    page.complaints.clear()


def test_enter_does_what_a_click_does(page: Browser, folder: Path) -> None:
    """On a button, a box, a curve; where nothing has the focus it opens the chosen episode."""
    with watching(folder.parent) as (link, _, _):
        show(page, link, "", "Runs")
        page.tab_to("Choose run")
        page.press("Enter")
        page.wait_until("document.activeElement.checked")
        show(page, link, "run/run/episodes", "task-")
        page.tab_to("✕ failed")
        page.press("Enter")
        page.wait_until("location.hash.includes('outcome=failed')")
        page.press("Enter")
        page.wait_until("!location.hash.includes('outcome=failed') && location.hash.includes('episodes')")
        page.run("document.activeElement.blur()")
        page.press("Enter")
        page.wait_until("location.hash.includes('/episode/')")
        show(page, link, "run/run", "Curves")
        page.wait_until("document.querySelector('.chart [role=slider]')?.ariaValueText.startsWith('step')")
        page.run("document.querySelector('.chart [role=slider]').focus()")
        page.press("Home", "ArrowRight")
        page.wait_until("document.activeElement.getAttribute('aria-valuetext').startsWith('step 1: run ')")
        page.press("Enter")
        page.wait_until("location.hash.endsWith('/step/1')")


def test_keys_are_found_on_keyboards_of_other_scripts(page: Browser, folder: Path) -> None:
    """By their place; never with Ctrl, Alt or Meta, and not while an input method writes."""
    with watching(folder) as (link, _, _):
        show(page, link, "run/run/episodes", "task-")
        for odd in ({"ctrlKey": True}, {"altKey": True}, {"metaKey": True}, {"isComposing": True}, {"keyCode": 229}):
            press(page, key="f", code="KeyF", **odd)
        assert "outcome" not in page.address
        press(page, key="а", code="KeyF")  # a Cyrillic letter
        page.wait_until("location.hash.includes('outcome=failed')")
        press(page, key="χ", code="KeyX")  # a Greek one
        page.wait_until("!location.hash.includes('outcome')")
        press(page, key="п", code="KeyG")
        press(page, key="ы", code="KeyS")
        page.wait_until("location.hash.endsWith('/steps')")
        press(page, key="؟", code="Slash", shiftKey=True)
        page.wait_until("document.querySelector('dialog[open]')")
        page.press("g", "o")  # the help is read, nothing happens behind it
        page.press("?")
        page.wait_until("!document.querySelector('dialog[open]')")
        assert page.address.endswith("/steps")


def test_drafts_of_an_input_method_are_not_searched_for(page: Browser, folder: Path) -> None:
    """What is written with one counts when a word has been chosen."""
    with watching(folder) as (link, _, _):
        show(page, link, "run/run/episodes", "task-")
        page.requests.clear()
        write = (
            "(text, isComposing) => { const field = document.getElementById('words'); field.focus(); "
            "field.value = text; field.dispatchEvent(new InputEvent('input', {bubbles: true, isComposing})); }"
        )
        page.run(f"({write})('shu', true)")
        page.run("new Promise(done => setTimeout(done, 400))")
        assert "q=" not in page.address and not any("q=" in url for url in page.requests)
        page.run("document.getElementById('words').value = '数'")
        page.run(
            "document.getElementById('words').dispatchEvent(new CompositionEvent('compositionend', {bubbles: true}))"
        )
        page.wait_until("decodeURIComponent(location.hash).includes('q=数')")


def test_a_link_that_is_broken_says_where_to_go(page: Browser, folder: Path) -> None:
    """Codes that are none, views, turns and runs that there are not."""
    with watching(folder) as (link, _, _):
        for place, said in (
            ("run/run/%E0%A4%A", "there is no such view"),
            ("run/%E0%A4%A", "There is no run"),
            ("run/run/branch?episode=ep-1&turn=none", "no turn none to go back to"),
            ("run/run/branch", "this link names no episode"),
            ("run/run/group/none", "No episode of this group has ended"),
            ("run/run/episodes?q=nowhere", "No episode is like that"),
            ("run/run/step/999", "Without step 999: the run has no step 999"),
            ("compare?a=run&b=run", "A and B are the same"),
            ("compare?a=run&b=run&step_a=3", f"Choose one of the steps 0, {NUM_STEPS - 1}."),
        ):
            show(page, link, place, said)
    page.complaints.clear()


def test_a_list_is_left_and_come_back_to_with_its_filters(page: Browser, folder: Path) -> None:
    """One level up and by the tab; the tab of the list itself shows all of it again."""
    with watching(folder) as (link, _, _):
        show(page, link, "run/run/episodes?turns_min=4&sort=-turns", "task-")
        page.press("j", "Enter")
        page.wait_until("document.querySelector('main.view-episode .graph')")
        page.press("u")
        page.wait_until("location.hash.endsWith('?turns_min=4&sort=-turns')")
        page.click("Steps")
        page.wait_for("Reward")
        page.press("g", "e")
        page.wait_until("location.hash.endsWith('?turns_min=4&sort=-turns')")
        page.wait_until("document.querySelector('main.view-episodes [data-total]')")
        page.run("[...document.querySelectorAll('nav a')].find(a => a.innerText === 'Episodes').click()")
        page.wait_until("location.hash.endsWith('/episodes')")


def test_a_long_list_is_printed_as_a_few_pages(page: Browser, tmp_path: Path) -> None:
    """Its first rows, with a note, and not a thousand empty pages."""
    with RunStore.create(tmp_path, "long", "model: {}\n") as store:
        for number in range(400):
            store.add_episode(episode_of(number, num_turns=1), step=number)
    with watching(store.folder) as (link, _, _):
        show(page, link, "run/long/episodes", "400 episodes", "task-49")
        assert 4 <= page.num_printed_pages() <= 9
        page.wait_until("document.querySelector('.virtual [role=list]').offsetHeight > 11000")


def test_a_link_to_curves_leads_to_them(page: Browser, folder: Path) -> None:
    """Also from above them in the same view, where the evidence of a finding would not be seen."""
    with watching(folder) as (link, _, _):
        show(page, link, "run/run", "Curves", "Show me")
        page.wait_until("document.querySelector('.chart canvas')")
        page.resize(900, 500)
        page.run("scrollTo(0, 0)")
        page.run("location.hash = '#/run/run?m=train/entropy'")
        page.wait_until("scrollY > 100 && document.querySelectorAll('.chart').length === 1")
        page.resize(1280, 800)


def test_what_nobody_sees_has_a_sign(page: Browser, folder: Path) -> None:
    """A terminal's escape, a turn of the direction of writing, a letter that only models read: they would change how
    what comes after them is read, or be overlooked."""
    episode = episode_of(8000, reward=0.5)
    first, *others = episode.session.turns
    told = replace(first, messages=(Message("user", "\x1b[31mred \u202egnorw\u202c \U000e0041."),))
    with RunStore.open(folder) as store:
        store.add_episode(replace(episode, session=replace(episode.session, turns=(told, *others))), step=1)
    with watching(folder) as (link, _, _):
        shown = "␛[31mred ‹U+202E›gnorw‹U+202C› ‹U+E0041›."
        show(page, link, f"run/run/episode/ep-8000/messages?turn={first.id}", shown)
        show(page, link, "run/run/episodes?q=ep-8000", shown)


def test_settings_have_all_their_digits(page: Browser, tmp_path: Path) -> None:
    text = "model: {path: x}\nseed: 20261127\ntrainer: {optimizer: {lr: 2.35e-05}}\n"
    with RunStore.create(tmp_path, "run", text) as store:
        store.add_metrics(1, {"rollout/reward": 0.5, "time/step_s": 2.0, "time/teacher_s": 1.5})
    with watching(tmp_path) as (link, _, _):
        show(page, link, "run/run", "20261127", "0.0000235", "teacher", "75")


def test_a_few_rows_give_no_verdict(page: Browser, folder: Path) -> None:
    """The interval stands there; the label names the steps that were evaluated, whatever came after them."""
    with RunStore.open(folder) as store:
        store.add_metrics(NUM_STEPS + 30, {"rollout/reward": 0.5})
    with watching(folder) as (link, _, _):
        texts = ("too few rows to tell", "of 5 rows only", "A: run, step 0", f"B: run, step {NUM_STEPS - 1}")
        show(page, link, "compare?a=run&b=run&step_a=0", *texts)


def test_a_report_filters_as_the_server_does(page: Browser, folder: Path) -> None:
    """The same page with its data inside finds as many episodes for each filter, counts the same outcomes and bins, and
    compares its first evaluation with its last."""
    report = folder.parent / "report.html"
    with RunStore.open(folder) as store:
        report.write_text(report_page(store, decode=decode), "utf-8")
    with watching(folder) as (_, port, key):
        ask = httpx.Client(
            base_url=f"http://127.0.0.1:{port}/api/", headers={"authorization": f"Bearer {key}"}, trust_env=False
        )
        with ask:
            while ask.get("runs/run/episodes").json()["num_unread"]:
                pass
            page.open(report.as_uri())
            page.wait_for("Curves")
            for query in (
                "reward_min=0.4&reward_below=0.6",
                "advantage_min=0.1&eval=0",
                "turns_min=3&turns_max=4&outcome=ok",
                "tool=search",
                "agent=helper",
                "q=ep-20",
                "step=3&eval=0",
            ):
                found = ask.get(f"runs/run/episodes?{query}").json()
                page.run(f"location.hash = '#/run/run/episodes?{query}'")
                page.wait_until(f"{_TOTAL} === '{found['total']}' && location.hash.includes('{query}')")
                counts = "[...document.querySelectorAll('.outcomes button b')].map(e => Number(e.innerText))"
                page.wait_until(f"{counts}.reduce((a, b) => a + b) === {sum(found['outcomes'].values())}")
    page.press("g", "c")
    page.wait_for("On the same held-out rows", "5 rows", "of 5 rows only")


_NODES = "document.querySelectorAll('main *').length"
_MOST_NODES = 4000
_LONG_VIEWS = {
    "episode/ep-1/tokens": (".token-lines", ".tok"),
    "episode/ep-1/messages": (".messages", ".messages .said"),
    "episode/ep-2/messages": (".messages", ".messages .said"),
    "episode/ep-2/time": (".turns", ".graph button"),
    "episode/ep-2/prompt": (".token-lines", ".tok"),
    "group/group-2": (".siblings", ".member .said"),
}
"""By its place what scrolls in a view, and what a row is."""


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_long_run(tmp_path_factory.mktemp("runs"), "long")


def scrolled(page: Page, box: str, part: float) -> None:
    """The box is scrolled to a part of its height, until the page has drawn what is there."""
    page.run(f"(box => {{ box.scrollTop = {part} * box.scrollHeight; }})(document.querySelector('{box}'))")
    page.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))")


def test_of_what_is_long_only_what_is_seen_is_drawn(page: Page, long_run: Path) -> None:
    """An answer of 100,000 tokens, 3,000 turns, a group of 300: the page holds as many nodes as a short one, wherever
    one scrolls, and rows stand in what is seen."""
    with watching(long_run) as (link, _, _):
        for place, (box, row) in _LONG_VIEWS.items():
            show(page, link, f"run/long/{place}", "long")
            page.wait_until(f"document.querySelector('{row}')")
            for part in (0.0, 0.3, 0.31, 0.9, 1.0, 0.5, 0.0):
                scrolled(page, box, part)
                nodes = page.run(_NODES)
                assert nodes < _MOST_NODES, (place, part)
                seen = (
                    f"(area => [...document.querySelectorAll('{row}')].some(row => {{ const own = "
                    "row.getBoundingClientRect(); return own.bottom > area.top && own.top < area.bottom && own.height; "
                    f"}}))(document.querySelector('{box}').getBoundingClientRect())"
                )
                page.wait_until(seen)


def test_a_long_conversation_is_walked_through(page: Page, long_run: Path) -> None:
    """To its end by scrolling, to any turn by its link and by keys; what has the focus may be scrolled away."""
    with watching(long_run) as (link, _, _):
        show(page, link, "run/long/episode/ep-2/messages", "Guess a number")
        assert "turn 3000" not in page.run("document.querySelector('.messages').innerText")
        page.run("document.querySelector('.messages a').focus()")
        for _ in range(4):  # rows that come into view may be higher than they were thought to be
            scrolled(page, ".messages", 1.0)
        page.wait_until("document.querySelector('.messages').innerText.includes('turn 3000')")
        page.wait_until("document.activeElement.className === 'messages'")
        turn = page.run(
            "fetch('/api/runs/long/episodes/ep-2').then(r => r.json()).then(r => r.turns[1499].id)",
        )
        show(page, link, f"run/long/episode/ep-2/messages?turn={turn}", "turn 1500")
        at = "document.querySelector('.said.now')?.getBoundingClientRect().top"
        page.wait_until(f"{at} > 0 && {at} < innerHeight")
        page.press("]", "]")
        page.wait_until(f"document.querySelector('.said.now')?.innerText.includes('turn 1502') && {at} < innerHeight")
        page.run("document.querySelector('.graph button[aria-pressed=true]').focus()")
        page.press("End")
        page.wait_until("document.activeElement.innerText.includes('3000')")
        page.press("Home")
        page.wait_until("document.activeElement.matches('.graph [aria-pressed=true]:first-child')")


def test_what_a_long_episode_asks_for_is_bounded(page: Page, long_run: Path) -> None:
    """A group of hundreds asks for the members that are seen, and the first tokens come in one page of 2,000."""
    with watching(long_run) as (link, _, _):
        page.open("about:blank")
        page.requests.clear()
        show(page, link, "run/long/group/group-2", "300 members")
        page.wait_until("document.querySelectorAll('.member .said').length > 8")
        asked = [url for url in page.requests if "/episodes/" in url]
        assert 4 <= len(asked) <= 20  # what is seen before the columns have their width, too
        page.press("]")  # the best one is the last of them; the next one is the first
        page.wait_until("location.hash.includes('base=')")
        page.run("document.querySelector('.siblings').scrollLeft = 191 * 312")  # members are 300 pixels wide, 12 apart
        page.wait_until("document.querySelector('.siblings').innerText.includes('ep-200')")
        assert len([url for url in page.requests if "/episodes/" in url]) <= 40
        first = page.run(
            "fetch('/api/runs/long/episodes/ep-1').then(r => r.json()).then(r => fetch('/api/runs/long/episodes/ep-1/"
            "turns/' + r.turns[0].id + '/tokens?limit=2000').then(r => r.text())).then(text => text.length)"
        )
        assert first < 2000 * 500
