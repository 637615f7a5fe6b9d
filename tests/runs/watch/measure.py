"""How fast the page of large runs is, in a real browser: `python -m tests.runs.watch.measure FOLDER`, where `big_run`
has written them.

Says milliseconds until a view stands, and after a filter; frames a second while a view is scrolled; nodes of the page;
and the memory of the watcher. Nothing is asserted: all but the nodes depends on the machine, and on who else uses it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.runs.browser import Browser, serving_process

_TOTAL = "document.querySelector('[data-total]')?.dataset.total"
_SCROLLED_S = 4
_VIEWS = {
    "big/episodes": (".virtual", "document.querySelector('.virtual .row')"),
    "long/episode/ep-1/tokens": (".token-lines", "document.querySelector('.tok.sampled')"),
    "long/episode/ep-1/messages": (".messages", "document.querySelector('.messages .said.reply')"),
    "long/episode/ep-2/messages": (".messages", "document.querySelector('.messages .said.reply')"),
    "long/episode/ep-2/time": (".turns", "document.querySelector('.lane button')"),
    "long/group/group-2": (".siblings", "document.querySelector('.member .said')"),
}
"""What scrolls, and what is true once the view stands, by the place of the view."""


def _first(condition: str) -> str:
    """A script: milliseconds since the page was asked for, or since `from`, until the condition is true."""
    return (
        f"new Promise(done => {{ const look = () => {condition} ? done(performance.now() - (window.from ?? 0)) : "
        "requestAnimationFrame(look); look(); })"
    )


def _scrolled(box: str) -> str:
    """A script: frames a second, and the longest, while the box is scrolled as fast as a wheel does."""
    return f"""new Promise(done => {{
        const box = document.querySelector({box!r}), times = [];
        const frame = now => {{
            times.push(now);
            box.scrollTop += 90;
            if (now - times[0] < {_SCROLLED_S * 1000}) return requestAnimationFrame(frame);
            const longest = Math.max(...times.slice(1).map((time, at) => time - times[at]));
            done([1000 * (times.length - 1) / (now - times[0]), longest]);
        }};
        requestAnimationFrame(frame);
    }})"""


def _memory_mb(process: int) -> float:
    """The most that the process has had."""
    (line,) = (line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(root: str) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        serving_process("watch", root, "--no-open", "--port", "0") as (link, process),
        Browser(Path(folder)) as page,
    ):
        page.open(link)
        page.wait_for("Runs")
        start = link.partition("?")[0]
        for run in ("big", "long"):
            page.open("about:blank")
            page.open(f"{start}#/run/{run}")
            taken_ms = page.run(_first("document.querySelector('.chart canvas')"))
            say(f"{run}: {taken_ms:.0f} ms to its overview")
        for place, (box, stands) in _VIEWS.items():
            page.open("about:blank")
            page.num_received_bytes = 0
            page.open(f"{start}#/run/{place}")
            taken_ms = page.run(_first(stands))
            frames, longest = page.run(_scrolled(box))
            nodes = page.run("document.querySelectorAll('*').length")
            received, memory = page.num_received_bytes / 2**20, _memory_mb(process)
            say(
                f"{place}: {taken_ms:.0f} ms; {frames:.0f} frames/s, the longest {longest:.0f} ms; {nodes} nodes; "
                f"{received:.1f} MiB; the watcher {memory:.0f} MB"
            )
        page.open("about:blank")
        page.open(f"{start}#/run/big/episodes")
        page.wait_until("fetch('/api/runs/big/episodes?limit=1').then(r => r.json()).then(r => !r.num_unread)", 600)
        for query in ("outcome=failed", "reward_min=0.9", "turns_min=5&outcome=ok", "q=because"):
            page.run(f"window.before = {_TOTAL}; window.from = performance.now()")
            page.run(f"location.hash = '#/run/big/episodes?{query}'")
            say(f"filter {query}: {page.run(_first(f'{_TOTAL} !== window.before')):.0f} ms")
        say(f"the watcher: at most {_memory_mb(process):.0f} MB")


if __name__ == "__main__":
    main(sys.argv[1])
