"""What a person does with `ludus watch`, in a real browser."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from ludus.api.trainer import Trainer
from ludus.runs.store import RunStore
from ludus.runs.tokens import TokenColumns, write_tokens
from ludus.runs.watch.branches import demonstrations
from ludus.runs.watch.page import one_file
from tests.api.test_recorded_tokens import ROWS, LettersAgent, config_of
from tests.runs.browser import Browser, Page, serving
from tests.runs.conftest import episode_of, fill_run

pytestmark = pytest.mark.timeout(300)

AXE = Path("build/axe/axe_playwright_python/axe.min.js")
_FAULTS = "r => r.violations.map(v => [v.impact, v.id, v.nodes[0].html.slice(0, 300)])"
_NUM_STEPS = 12
_SERVED = "default"  # as the gateway calls its model
_LOADED_S = 180.0  # a process that loads torch and a model, at the lowest priority
_LOSS = 0.125
_TYPING_S = 0.15
_CONFIG = "name: {name}\nmodel: {{}}\nseed: 0\n"


class Watched:
    """A folder of two runs, the server that shows it, and a browser in front of it."""

    def __init__(self, root: Path, link: str, page: Browser) -> None:
        self.page = page
        self.link = link
        self.origin, self.key = re.match(r"(http://127\.0\.0\.1:\d+)/\?key=([^#]+)", link).groups()  # type: ignore[union-attr]
        self.run = root / "first"

    def get(self, path: str) -> Any:
        answer = httpx.get(
            self.origin + path, headers={"authorization": f"Bearer {self.key}"}, trust_env=False, timeout=30
        )
        answer.raise_for_status()
        return answer.json()

    @property
    def run_id(self) -> str:
        [found] = [run["id"] for run in self.get("/api/runs")["runs"] if run["name"] == "first"]
        return str(found)

    def show(self, place: str, *texts: str, page: Page | None = None) -> None:
        page = page or self.page
        page.open("about:blank")  # another place of one page is no new page to a browser
        page.open(f"{self.origin}/#/{place}")
        page.wait_for(*texts)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"file:{self.run / 'run.db'}?mode=ro", uri=True)) as db:
            return db.execute(sql).fetchall()


def _write_losses(store: RunStore, step: int) -> None:
    """What the loss used of the tokens of a step, the same of each."""
    turns = [
        (turn.id, len(turn.sampled.token_ids))
        for number in range(8 * step, 8 * step + 8)
        if (episode := store.episode(f"ep-{number}")).outcome.kind == "ok"
        for turn in episode.session.turns
    ]
    num = sum(length for _, length in turns)
    losses = array("f", [_LOSS / num] * num)
    others = {name: array("f", [0.5] * num).tobytes() for name in ("trained_logprob", "ratio", "weight", "entropy")}
    columns = TokenColumns(
        [(number, length) for number, (_, length) in enumerate(turns)], {**others, "loss": losses.tobytes()}
    )
    write_tokens(store.folder, step, columns, {n: (turn, range(length)) for n, (turn, length) in enumerate(turns)})
    store.add_metrics(step, {"train/loss": sum(losses)})


@contextmanager
def _opened(root: Path, folder: Path, served: str) -> Iterator[Watched]:
    """folder: of the browser.  served: where a model is served that is none of the runs'."""
    with (
        serving("watch", str(root), "--no-open", "--port", "0", "--model", f"{_SERVED}={served}") as link,
        Browser(folder) as page,
    ):
        page.open(link)
        page.wait_for("Runs")  # the key is a cookie now
        yield Watched(root, link, page)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> Iterator[Watched]:
    root = tmp_path_factory.mktemp("runs")
    for name, seed in (("first", 0), ("second", 1)):
        with RunStore.create(root, name, _CONFIG.format(name=name)) as store:
            fill_run(store, num_steps=_NUM_STEPS, seed=seed)
            _write_losses(store, _NUM_STEPS - 1)
    config = config_of(tiny_model_folder, root, name="played", checkpoint={"every_steps": 1})
    Trainer(config, ROWS).train(LettersAgent)
    into = str(tmp_path_factory.mktemp("served") / "run")
    with (
        serving("gateway", str(tiny_model_folder), "--into", into, "--port", "0", "model.dtype=float32") as served,
        _opened(root, tmp_path_factory.mktemp("browser"), served) as watched,
    ):
        yield watched


@pytest.fixture(autouse=True)
def is_clean(watched: Watched) -> Iterator[None]:
    """No test leaves an error on the console, and nothing is asked of anyone but the server."""
    watched.page.resize(1280, 800)
    watched.page.prefer("light")
    watched.page.complaints.clear()
    watched.page.requests.clear()
    yield
    watched.page.text  # noqa: B018 # events that are on their way come with the answer
    assert watched.page.complaints == []
    away = [url for url in watched.page.requests if not url.startswith((watched.origin, "about:", "data:", "file:"))]
    assert away == []


def test_a_point_arrives_while_one_looks(watched: Watched) -> None:
    """From the printed link to the run, where a step that is trained meanwhile appears without a reload."""
    page = watched.page
    page.open(watched.link)
    page.wait_for("Runs", "first", "second")
    assert "key=" not in page.address
    page.click("first")
    page.wait_for("Curves", "rollout/reward", "Where tokens go", "Ended badly", "the agent raised ValueError")
    page.wait_until("document.querySelectorAll('.chart canvas').length > 3")
    page.wait_until(f"document.querySelector('[data-live=step]').innerText === '{_NUM_STEPS - 1}'")
    page.run("window.isSame = true")
    with RunStore.open(watched.run) as store:
        store.add_metrics(_NUM_STEPS, {"rollout/reward": 0.4321, "train/entropy": 0.2})
    page.wait_until(f"document.querySelector('[data-live=step]').innerText === '{_NUM_STEPS}'")
    page.wait_for("0.432")
    assert page.run("window.isSame"), "the page was not loaded anew"


def test_a_run_that_has_only_begun_gets_its_curves(watched: Watched) -> None:
    """Who looks before the first step sees every curve when it comes, as who looks later does."""
    with RunStore.create(watched.run.parent, "begun", _CONFIG.format(name="begun")) as store:
        store.add_metrics(0, {"eval/turns": 3.0})
        watched.show("run/begun", "Overview of begun", "Curves", "eval/turns")
        assert "train/entropy" not in watched.page.text
        store.add_metrics(1, {"rollout/reward": 0.5, "train/entropy": 0.2})
        watched.page.wait_for("train/entropy", "rollout/reward")


def test_rewards_filter_and_words_are_found(watched: Watched) -> None:
    """The handles of the histogram and the search leave those episodes that the record says."""
    page = watched.page
    watched.show(f"run/{quote(watched.run_id)}/episodes", "Episodes")
    page.wait_until("document.querySelectorAll('.handle').length === 2")
    page.run("document.querySelector('.handle').focus()")
    for _ in range(4):
        page.press("ArrowRight")
    least = float(page.wait_until("document.querySelector('.handle').getAttribute('aria-valuenow')"))
    page.wait_until("location.hash.includes('reward_min')")
    ((above,),) = watched.rows(f"SELECT count(*) FROM episodes WHERE reward >= {least}")
    page.wait_until(f"document.querySelector('[data-total]')?.dataset.total === '{above}'")
    page.press("x")
    ((all_of_them,),) = watched.rows("SELECT count(*) FROM episodes")
    page.wait_until(f"document.querySelector('[data-total]')?.dataset.total === '{all_of_them}'")
    page.press("/")
    for letter in "nowhere":  # each as the letters before it have just been looked for
        page.press(letter)
        time.sleep(_TYPING_S)
    page.wait_until("document.getElementById('words').value === 'nowhere'")
    page.wait_for("No episode is like that")
    page.press("Escape", "x")
    page.wait_until(f"document.querySelector('[data-total]')?.dataset.total === '{all_of_them}'")


def test_what_is_being_typed_is_asked_for_and_stays(watched: Watched) -> None:
    """A number that is typed filters as words do, without leaving its field, while episodes come."""
    page = watched.page
    watched.show(f"run/{quote(watched.run_id)}/episodes", "Episodes")
    page.wait_until("document.querySelector('[data-total]')")
    page.tab_to("min turns")
    page.press("3")
    ((long,),) = watched.rows("SELECT count(*) FROM episodes WHERE num_turns >= 3")
    page.wait_until(f"document.querySelector('[data-total]')?.dataset.total === '{long}'")
    page.wait_until("location.hash.includes('turns_min=3')")
    with RunStore.open(watched.run) as store:
        store.add_episode(episode_of(9000, num_turns=1), step=0)
    page.wait_for("1 new one")
    assert page.run("document.activeElement.value") == "3"


def test_the_losses_of_all_tokens_are_the_loss_of_the_step(watched: Watched) -> None:
    """The page adds up every token that it can show, and comes to what the trainer reported."""
    page = watched.page
    watched.show(f"run/{quote(watched.run_id)}/step/{_NUM_STEPS - 1}", "Loss", "as the trainer reported it")
    page.click("Add up")
    total = float(page.wait_until("document.querySelector('[data-sum]')?.dataset.sum"))
    assert total == pytest.approx(_LOSS, abs=1e-6)
    assert page.text.count("equal") == 2


def test_siblings_and_runs_stand_side_by_side(watched: Watched) -> None:
    """A group's members with what differs marked; two runs with their numbers, or why they have no pairs."""
    page = watched.page
    run = watched.run_id
    ((group,),) = watched.rows("SELECT group_id FROM episodes LIMIT 1")
    watched.show(f"run/{quote(run)}/group/{group}", "members", "marked")
    page.wait_until("document.querySelectorAll('.member').length === 8")
    page.wait_until("document.querySelectorAll('.member mark').length")
    ids = [each["id"] for each in watched.get("/api/runs")["runs"]]
    watched.show(f"compare?a={quote(ids[0])}&b={quote(ids[1])}", "All numbers", "rollout/reward")


def _views(watched: Watched) -> list[tuple[str, str]]:
    run = quote(watched.run_id)
    ((episode, group),) = watched.rows("SELECT id, group_id FROM episodes WHERE outcome = 'ok' LIMIT 1")
    ids = [quote(each["id"]) for each in watched.get("/api/runs")["runs"]]
    return [
        ("", "first"),
        (f"run/{run}", "Curves"),
        (f"run/{run}/steps", "Reward"),
        (f"run/{run}/step/{_NUM_STEPS - 1}", "as the trainer reported it"),
        (f"run/{run}/episodes", "First words"),
        (f"run/{run}/group/{group}", "marked"),
        (f"run/{run}/episode/{episode}", "Guess"),
        (f"run/{run}/episode/{episode}/time", "Turns"),
        (f"run/{run}/episode/{episode}/prompt", "as the model saw them"),
        (f"run/{run}/episode/{episode}/tokens?i=0", "1 of"),
        (f"run/{run}/branches", "Branches"),
        (f"run/{run}/branch?episode={episode}", "What the model is told"),
        (f"run/{run}/chat", "Says nothing yet"),
        (f"compare?a={ids[0]}&b={ids[1]}", "All numbers"),
    ]


@pytest.mark.parametrize("width", [390, 1280])
def test_every_view_can_be_read_by_everybody_and_on_a_phone(watched: Watched, width: int) -> None:
    """axe-core finds no serious fault, light or dark, and nothing stands beside the screen, of 390 pixels either."""
    assert AXE.exists(), "axe-core is not here: `make machine` fetches it"
    page = watched.page
    watched.show("", "first")
    page.run(f"{AXE.read_text('utf-8')}; undefined")
    page.resize(width, 844)
    for place, text in _views(watched):
        page.run(f"location.hash = {json.dumps('#/' + place)}")
        page.wait_for(text)
        assert page.run("document.documentElement.scrollWidth") <= width, place
        for scheme, rules in (("light", ""), ("dark", "{runOnly: ['color-contrast']}")):
            page.prefer(scheme)
            page.wait_until(f"document.documentElement.dataset.theme === '{scheme}'")
            found = page.run(f"axe.run({rules}).then({_FAULTS})")
            assert [fault for fault in found if fault[0] in ("serious", "critical")] == [], (place, scheme)


def test_on_a_phone_an_episode_is_found_and_a_token_read(watched: Watched) -> None:
    """With taps alone: the run, its failed episodes, one of them, a token with all its numbers, the other members of
    its group; nothing stands beside the screen."""
    page, phone = watched.page, 390
    page.resize(phone, 844)
    watched.show("", "first")

    def fits() -> None:
        assert page.run("document.documentElement.scrollWidth") <= phone, page.address

    page.click("first")
    page.wait_for("Curves")
    fits()
    page.click("Episodes")
    page.wait_until("document.querySelector('.row .outcome')")
    page.click_on(".outcomes button:has([title=failed])")
    page.wait_until("location.hash.includes('outcome=failed')")
    page.wait_for("the agent raised ValueError")
    ((failed,),) = watched.rows("SELECT count(*) FROM episodes WHERE outcome = 'failed'")
    page.wait_until(f"document.querySelectorAll('.virtual .row').length === {failed}")
    fits()
    page.click_on(".row")
    page.wait_until("document.querySelector('main.view-episode .graph')")
    page.wait_for("the agent raised ValueError")
    fits()
    page.click("Tokens")
    page.wait_until("document.querySelectorAll('.tok.sampled').length > 1")
    page.click_on(".tok.sampled")
    page.wait_for("sampled logprob")
    assert page.run("document.querySelector('.token-details').getBoundingClientRect().width") > phone / 2
    fits()
    _axe(page, "a token on a phone")
    page.click("side by side")
    page.wait_until("document.querySelectorAll('.member .said').length")
    fits()


def answer_anew(page: Page, model: str, *, num: int) -> None:
    """The first message of a turn that one has gone back to is changed; so many answers of the model are waited for."""
    page.tab_to("change message 1")
    page.press("Enter")
    page.wait_until("document.querySelector('textarea')")
    page.tab_to("Message 1")
    page.write("Name a colour")
    page.tab_to("With")
    page.choose(model)
    page.tab_to("Answers")
    page.write(str(num))
    page.tab_to("Try")
    page.press("Enter")
    page.wait_for("At first", "Name a colour")
    finished = "document.querySelector('.this .tag').innerText === 'finished'"
    page.wait_until(f"{finished} && document.querySelectorAll('.this .samples .what').length === {num}", _LOADED_S)


def _axe(page: Page, place: str) -> None:
    page.run(f"{AXE.read_text('utf-8')}; undefined")
    found = page.run(f"axe.run().then({_FAULTS})")
    assert [fault for fault in found if fault[0] in ("serious", "critical")] == [], place


@pytest.mark.timeout(900)  # models are loaded at the lowest priority
def test_from_a_turn_three_models_try_again_with_the_keyboard_alone(watched: Watched) -> None:
    """A message is edited; the base, the last step and a model that is served elsewhere answer it three times each; the
    answers stand beside the first one, with tokens and alternatives where there are any; one is chosen as a
    demonstration; none is an episode of the run."""
    page, folder = watched.page, watched.run.parent / "played"
    watched.show("run/played/episodes", "Episodes")
    page.wait_until("document.querySelectorAll('.row').length === 8")
    page.press("j", "Enter")
    page.wait_for("Turns", "go back and try")
    page.press("l")
    page.wait_for("waiting", "prefill", "decode", "whole")
    page.press("b")
    page.wait_for("What the model is told", "checkpoint.keep")
    for number, model in enumerate((f"{_SERVED} at http", "base", "step 2")):
        answer_anew(page, model, num=3)
        if number < 2:
            page.tab_to("try again")
            page.press("Enter")
            page.wait_for("Tried from here", "3 answers")
    page.wait_until("document.querySelectorAll('.sides > .panel').length === 4")
    page.wait_for("base: ", "step 2", "reward", f"{_SERVED} at http://127.0.0.1")
    page.tab_to("tokens of answer 1")
    page.press("Enter")
    page.wait_until("document.querySelector('.samples .tok.sampled')")
    boxes = (
        "[...document.querySelectorAll('.sides .choice button')].map(e => [e, e.parentElement, e.closest('.panel')])"
    )
    rights = f"{boxes}.map(each => each.map(e => e.getBoundingClientRect().right))"
    page.wait_until(f"{boxes}.length === 5")
    assert all(button <= row <= panel for button, row, panel in page.run(rights)), "a button is cut off"
    page.run("document.querySelector('.samples .token-lines').focus()")
    page.press("End")
    page.wait_for("sampled logprob")
    page.wait_until("document.querySelectorAll('.alternatives li').length === 5")
    page.tab_to("choose answer 2")
    page.press("Enter")
    page.wait_until("document.querySelectorAll('.samples [aria-pressed=true]').length === 1")
    _axe(page, "a branch")
    page.resize(390, 844)
    page.wait_until("document.documentElement.scrollWidth <= 390")
    assert len(list(demonstrations(folder))) == 1
    assert watched.get("/api/runs/played/episodes")["total"] == 8
    page.resize(1280, 800)
    page.press("g", "b")
    page.wait_until("document.querySelectorAll('table tbody tr').length === 3")
    page.wait_for("message 1", "step-000002", "base", "served elsewhere")
    assert [each["name"] for each in watched.get("/api/runs")["runs"] if "branches" in each["name"]] == []
    branch = page.run(
        "[...document.querySelectorAll('tbody tr')].find(row => row.innerText.includes('served elsewhere'))"
        ".querySelector('a').innerText"
    )
    with serving("watch", str(folder / "branches"), "--no-open", "--port", "0") as link, page.new_page() as by_itself:
        by_itself.open(link)
        by_itself.wait_for("Curves")
        for place in ("tokens", "prompt"):
            by_itself.run(f"location.hash = '#/run/branches/episode/{branch}-00/{place}'")
            by_itself.wait_for("a model that is served elsewhere answered, with text alone")
        assert by_itself.run("document.querySelector('.tok')") is None and by_itself.complaints == []


@pytest.mark.timeout(900)
def test_two_models_are_talked_to_side_by_side(watched: Watched) -> None:
    """Each answers in its own column while it samples, goes on with what was said, and shows its tokens."""
    page = watched.page
    watched.show("run/played", "Curves")
    page.press("g", "t")
    page.wait_for("Chat", "trained")
    page.tab_to("base")
    page.press("Enter")
    page.wait_until("document.querySelectorAll('.talk').length === 2")
    for number, text in enumerate(("Hello", "And again"), start=1):
        page.tab_to("Message")
        page.press(*text)
        page.tab_to("Tokens at most")
        page.write("6")
        page.tab_to("Send")
        page.press("Enter")
        page.wait_until(f"document.querySelectorAll('.talk .said.reply button').length === {2 * number}", _LOADED_S)
    page.wait_until("document.querySelector('.say button.main')")
    _axe(page, "chat")
    page.click_on(".talk .said.reply button")
    page.wait_until("document.querySelector('.talk .tok.sampled')")
    page.resize(390, 844)
    page.wait_until("document.documentElement.scrollWidth <= 390")


def test_help_names_the_keys_and_gives_way(watched: Watched) -> None:
    """`?` opens it, Escape closes it, and the keys that it names hold."""
    page = watched.page
    watched.show(f"run/{quote(watched.run_id)}/episodes", "task-")
    page.press("?")
    page.wait_for("Keys", "failed episodes only")
    page.press("Escape")
    page.wait_until("!document.querySelector('dialog')")
    page.press("j", "j")
    page.wait_until("document.activeElement.dataset.row === '1'")
    page.press("d")
    page.wait_until("document.documentElement.dataset.theme === 'dark'")
    page.press("d", "u")
    page.wait_for("Curves")


def test_a_report_in_one_file_is_the_same_page(watched: Watched, tmp_path: Path) -> None:
    """With the server's answers inside, it opens from the disk, filters, shows tokens, and asks nobody."""
    run = f"/api/runs/{quote(watched.run_id)}"
    routes = ["/api/runs", run, f"{run}/health", f"{run}/ledger"]
    data = {route: watched.get(route) for route in routes}
    data["/api/runs"] = {"runs": [each for each in data["/api/runs"]["runs"] if each["name"] == "first"]}
    data[f"{run}/metrics"] = watched.get(f"{run}/metrics?names={','.join(data[run]['metrics'])}")
    data[f"{run}/episodes"] = watched.get(f"{run}/episodes?limit=1000")
    report = tmp_path / "report.html"
    report.write_text(one_file(data), "utf-8")
    page = watched.page
    page.open(report.as_uri())
    page.wait_for("Curves", "Where tokens go")
    page.press("g", "e")
    page.wait_until("document.querySelector('[data-total]')")
    page.press("f")
    ((failed,),) = watched.rows("SELECT count(*) FROM episodes WHERE outcome = 'failed'")
    page.wait_until(f"document.querySelector('[data-total]')?.dataset.total === '{failed}'")
    assert {url.partition("#")[0] for url in page.requests} == {report.as_uri()}
