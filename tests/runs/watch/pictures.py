"""Pictures of the page's views, to look at: `python -m tests.runs.watch.pictures RUN FOLDER`, RUN being a run's folder.

Each is taken light, dark, and as wide as a phone. Of those in `docs/images/`, the ones whose views ask no model are
`overview-light.png`, `group-light.png`, `tokens-light.png` and `episodes-phone.png`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from ludus.runs.store import RunStore
from tests.runs.browser import Browser, serving

_SIZES = {"light": (1280, 800), "dark": (1280, 800), "phone": (390, 844)}
_DRAWN_S = 0.6  # lines and canvases, once their data are there


def views(run: Path) -> dict[str, tuple[str, str]]:
    """By name the view's place, and a script that is true once it stands."""
    with RunStore.look(run) as store:
        ((episode, group, step),) = store.rows(
            "SELECT id, group_id, step FROM episodes WHERE is_eval = 0 AND outcome = 'ok' ORDER BY num_turns DESC, num "
            "LIMIT 1"
        )
    here = f"run/{quote(run.name)}"
    steps = f"compare?a={quote(run.name)}&b={quote(run.name)}"
    return {
        "overview": (here, "document.querySelectorAll('.chart canvas').length > 3"),
        "steps": (f"{here}/steps", "document.querySelector('.row')"),
        "step": (f"{here}/step/{step}", "document.querySelector('.groups .row')"),
        "episodes": (f"{here}/episodes?sort=-reward", "document.querySelector('.row .outcome')"),
        "group": (f"{here}/group/{group}", "document.querySelector('.member .said')"),
        "episode": (f"{here}/episode/{episode}", "document.querySelector('.messages .said')"),
        "time": (f"{here}/episode/{episode}/time", "document.querySelector('.lane button')"),
        "prompt": (f"{here}/episode/{episode}/prompt?i=5", "document.querySelector('.tok')"),
        "tokens": (f"{here}/episode/{episode}/tokens?by=loss", "document.querySelector('.tok.sampled')"),
        "branches": (f"{here}/branches", "document.querySelector('h1')"),
        "branch": (f"{here}/branch?episode={episode}", "document.querySelector('.editable li')"),
        "chat": (f"{here}/chat", "document.querySelector('textarea')"),
        "compare": (steps, "document.querySelector('table')"),
    }


def main(run: Path, into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving("watch", str(run), "--no-open", "--port", "0") as link,
        Browser(Path(folder)) as page,
    ):
        page.open(link)
        page.wait_for("Curves")
        start = link.partition("?")[0]
        for kind, (width, height) in _SIZES.items():
            page.resize(width, height)
            page.prefer("dark" if kind == "dark" else "light")
            for name, (place, stands) in views(run).items():
                page.open("about:blank")
                page.open(f"{start}#/{place}")
                page.wait_until(stands, 60)
                if name == "tokens":
                    page.click_on(".tok.sampled")
                time.sleep(_DRAWN_S)
                page.picture(into / f"{name}-{kind}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
