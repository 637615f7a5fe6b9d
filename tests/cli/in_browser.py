"""`ludus train`, watched in a real browser while it trains: a user's way from a point that arrives to two models that
answer a changed turn."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from ludus.runs.store import RunStore
from tests.runs.browser import Browser, serving
from tests.runs.watch.in_browser import answer_anew

pytestmark = pytest.mark.timeout(900)  # models are loaded at the lowest priority, beside a run that trains
LOADED_S = 300.0
EVERY = 4  # steps between checkpoints, and evaluations

AGENT = """
import asyncio

def rows():
    return [{"number": number} for number in range(12)]

def held_out():
    return [{"number": 3 * number + 1} for number in range(100, 104)]

class Agent:
    async def run(self, data, *, base_url, http_client, **extra_kwargs):
        messages = [{"role": "user", "content": f"What do you know about {data['number']}?"}]
        rewards = {}
        for follow_up in ("And why?", ""):
            answer = (await http_client.post(base_url + "/chat/completions", json={"messages": messages})).json()
            text = answer["choices"][0]["message"]["content"] or ""
            rewards[answer["id"]] = len(set(text)) / 10
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": follow_up}]
            await asyncio.sleep(0.2)  # as long as a tool takes: the run lasts while one looks
        if data["number"] % 3 == 0:
            raise ValueError("this number is not known")
        return rewards
"""


@contextmanager
def training(folder: Path, model: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run of `ludus train` called live that has begun, killed when the block ends if it was not before."""
    (folder / "agent.py").write_text(AGENT)
    config = {
        "name": "live",
        "run_root": str(folder / "runs"),
        "workflow": f"{folder}/agent.py:Agent",
        "train_dataset": {"path": f"{folder}/agent.py:rows", "batch_size": 3},
        "valid_dataset": {"path": f"{folder}/agent.py:held_out"},
        "model": {"path": str(model), "dtype": "float32"},
        "engine": {"kv_bytes": 2**22},
        "gconfig": {"n_samples": 2, "max_new_tokens": 6},
        "rollout": {"max_consecutive_failures": 1000},  # of a third of the rows each try fails
        "trainer": {"optimizer": {"lr": 1e-3}},
        "total_train_steps": 5000,
        "eval": {"before": True, "every_steps": EVERY},
        "checkpoint": {"every_steps": EVERY, "keep": 100},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "ludus", "train", str(folder / "run.yaml")]
    with (folder / "said.txt").open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        begun_at = time.monotonic()
        while not (folder / "runs" / "live" / "run.db").exists():
            assert process.poll() is None and time.monotonic() < begun_at + LOADED_S, (folder / "said.txt").read_text()
            time.sleep(0.1)
        yield process
    except BaseException as error:
        error.add_note((folder / "said.txt").read_text()[-2000:])
        raise
    finally:
        process.kill()
        process.wait()


def test_a_user_watches_a_run_that_trains(tmp_path: Path, tiny_model_folder: Path) -> None:
    """With the keyboard alone: a point arrives; a failed episode is found, opened, and a token of it pointed at, whose
    link a second tab shows alike; a turn is changed and answered by the model of step 0 and by that of a later step;
    evaluations of both steps are compared; the run trains on meanwhile, and its end is seen."""
    runs = tmp_path / "runs"
    with (
        training(tmp_path, tiny_model_folder) as trained,
        serving("watch", str(runs), "--no-open", "--port", "0") as link,
        Browser(tmp_path / "browser") as page,
    ):
        origin = link.partition("/?")[0]
        page.open(link)
        page.wait_for("live", timeout_s=LOADED_S)
        page.tab_to("live")
        page.press("Enter")
        page.wait_for("Curves", "rollout/reward", "running", timeout_s=LOADED_S)
        page.run("window.isSame = true")
        step = "Number(document.querySelector('[data-live=step]').innerText)"
        seen = page.wait_until(step, LOADED_S)
        later = page.wait_until(f"{step} > {max(seen, EVERY)} && {step}", LOADED_S)
        assert page.run("window.isSame"), "the page was not loaded anew"

        page.press("g", "e")
        page.wait_until("document.querySelector('[data-total]')")
        page.press("f")
        page.wait_until("location.hash.includes('outcome=failed') && document.querySelector('.row .outcome')")
        page.wait_for("ValueError: this number is not known")
        page.press("Enter")
        page.wait_for("ValueError: this number is not known", "Turns", "go back and try")

        page.press("t")
        page.wait_until("document.querySelectorAll('.tok.sampled').length > 1")
        page.tab_to("Tokens, ")
        page.press("End")
        page.wait_for("sampled logprob")
        shown = page.run("document.querySelector('.token-details dd').innerText")
        address = page.wait_until("location.hash.includes('i=') && location.href")
        episode = re.search(r"/episode/([^/]+)/", address)[1]  # type: ignore[index]
        with RunStore.look(runs / "live") as store:
            played = store.episode(episode)
        last = [f"{turn.sampled.logprobs[-1]:.6f}".replace("-", "−") for turn in played.session.turns]
        assert played.outcome.kind == "failed" and any(each in shown for each in last), (shown, last)
        with page.new_page() as second:
            second.open(address)
            second.wait_for("sampled logprob")
            assert second.run("document.querySelector('.token-details dd').innerText") == shown
            assert second.complaints == []

        page.press("b")
        page.wait_for("What the model is told")
        page.wait_until(f"[...document.querySelectorAll('option')].some(e => e.innerText === 'step {EVERY}')")
        for model in ("base", f"step {EVERY}"):
            answer_anew(page, model, num=2)
            if model == "base":
                page.tab_to("try again")
                page.press("Enter")
                page.wait_for("Tried from here", "2 answers")
        page.wait_until("document.querySelectorAll('.sides > .panel').length === 3")
        page.wait_for("base: ", f"step {EVERY}", "At first")

        page.press("g", "c")
        page.tab_to("Run B")
        page.choose("live")
        page.tab_to("Step of A")
        page.write("0")
        page.tab_to("Step of B")
        page.write(str(EVERY))
        page.wait_for("On the same held-out rows", "4 rows", "B − A", "95 %", timeout_s=LOADED_S)

        page.press("Escape", "g", "r")
        page.wait_for("live", "running")
        page.tab_to("live")
        page.press("Enter")
        page.wait_for("Curves")
        page.wait_until(f"{step} > {later}", LOADED_S)
        trained.kill()
        page.wait_for("interrupted")
        assert page.complaints == []
        asked = {url for url in page.requests if not url.startswith((origin, "about:", "data:"))}
        assert asked == set(), "something was asked of another machine"
    with RunStore.look(runs / "live") as store:
        assert all(row["task_id"] != "branch" for row in store.episode_rows())
