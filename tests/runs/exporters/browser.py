"""A headless Chromium that a test drives through its DevTools: pages, texts, clicks, pictures."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from websockets.sync.client import connect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""None: there is none on this machine."""
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
    "--window-size=1600,1000",
)
_START_S = 60.0


class Browser:
    """One page. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        """folder: of its own, for the browser's data."""
        assert CHROMIUM is not None, "there is a browser"
        self._folder = folder
        self._process = subprocess.Popen(
            [CHROMIUM, *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._ids = itertools.count(1)

    def __enter__(self) -> Browser:
        try:
            port = self._wait_for_port()
            pages = httpx.get(f"http://127.0.0.1:{port}/json/list", trust_env=False).json()
            [page] = [page for page in pages if page["type"] == "page"]
            self._socket = connect(page["webSocketDebuggerUrl"], max_size=None, proxy=None)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._end()

    def open(self, url: str) -> None:
        self._ask("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    @property
    def text(self) -> str:
        """What a person reads on the page."""
        return str(self.run("document.body ? document.body.innerText : ''"))

    def wait_for(self, *texts: str, timeout_s: float = 60.0) -> str:
        """The page's text once it holds all of these."""
        deadline_at = time.monotonic() + timeout_s
        while missing := [text for text in texts if text not in (found := self.text)]:
            assert time.monotonic() < deadline_at, f"{missing} did not appear on the page; it says:\n{found}"
            time.sleep(0.1)
        return found

    def click(self, text: str) -> None:
        """Clicks on the innermost visible element with this text."""
        place = self.run(
            "(() => { const found = [...document.querySelectorAll('*')].filter(e => e.innerText && "
            f"e.innerText.trim() === {json.dumps(text)} && e.getBoundingClientRect().width > 0); "
            "const last = found.at(-1); if (!last) return null; last.scrollIntoView({block: 'center'}); "
            "const box = last.getBoundingClientRect(); "
            "return [box.left + box.width / 2, box.top + box.height / 2]; })()"
        )
        assert place is not None, f"nothing on the page says {text!r}; it says:\n{self.text}"
        for kind in ("mousePressed", "mouseReleased"):
            self._ask("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def picture(self, path: Path) -> None:
        """Writes what the page looks like, as PNG."""
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))

    def _ask(self, method: str, **params: Any) -> Any:
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            answer = json.loads(self._socket.recv(timeout=60))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _wait_for_port(self) -> int:
        file, deadline_at = self._folder / "DevToolsActivePort", time.monotonic() + _START_S
        while not (file.exists() and file.read_text().strip()):
            assert self._process.poll() is None, "the browser ended"
            assert time.monotonic() < deadline_at, "the browser did not start"
            time.sleep(0.05)
        return int(file.read_text().splitlines()[0])

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait(20)
