"""A headless Chromium that a test drives through its DevTools: pages, texts, clicks, keys, pictures."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
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


_KEYS = {
    "Enter": 13, "Escape": 27, "Tab": 9, "Home": 36, "End": 35, "PageUp": 33, "PageDown": 34,
    "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
}  # fmt: skip
"""Keys that write nothing, with the number that they have in browsers."""


class Page:
    """One tab. What it asks of the network and what it complains of is kept."""

    def __init__(self, socket_url: str) -> None:
        # no pings: their answers wait behind what a page tells while a test does something else
        self._socket = connect(socket_url, max_size=None, proxy=None, ping_interval=None)
        self._ids = itertools.count(1)
        self.requests: list[str] = []
        """Addresses that were asked for, in order."""
        self.complaints: list[str] = []
        """Errors and warnings of the page, and whatever it threw."""
        self.num_received_bytes = 0
        """Of the answers to its requests, as they went over the wire."""
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

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

    @property
    def address(self) -> str:
        return str(self.run("location.href"))

    def wait_for(self, *texts: str, timeout_s: float = 60.0) -> str:
        """The page's text once it holds all of these."""
        deadline_at = time.monotonic() + timeout_s
        while missing := [text for text in texts if text not in self.text]:
            assert time.monotonic() < deadline_at, f"{missing} did not appear on the page; it says:\n{self.text}"
            time.sleep(0.1)
        return self.text

    def wait_until(self, script: str, timeout_s: float = 30.0) -> Any:
        """The value of a JavaScript expression once it is true."""
        deadline_at = time.monotonic() + timeout_s
        while (value := self.run(script)) in (None, False, 0, ""):  # an element comes as an empty mapping
            assert time.monotonic() < deadline_at, f"{script} did not become true; the page says:\n{self.text}"
            time.sleep(0.05)
        return value

    def click(self, text: str) -> None:
        """Clicks on the innermost visible element with this text."""
        found = f"[...document.querySelectorAll('*')].filter(e => e.innerText?.trim() === {json.dumps(text)})"
        self._click(f"{found}.filter(e => e.getBoundingClientRect().width > 0).at(-1)", text)

    def click_on(self, selector: str) -> None:
        """Clicks in the middle of the first element of a CSS selector."""
        self._click(f"document.querySelector({json.dumps(selector)})", selector)

    def _click(self, element: str, name: str) -> None:
        place = self.run(
            f"(() => {{ const found = {element}; if (!found) return null; found.scrollIntoView({{block: 'center'}}); "
            "const box = found.getBoundingClientRect(); "
            "return [box.left + box.width / 2, box.top + box.height / 2]; })()"
        )
        assert place is not None, f"nothing on the page is {name!r}; it says:\n{self.text}"
        for kind in ("mousePressed", "mouseReleased"):
            self._ask("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def press(self, *keys: str) -> None:
        """Keys of the keyboard one after the other, by their names or what they write."""
        for key in keys:
            code = _KEYS.get(key)
            writes = {"text": "\r" if key == "Enter" else key} if code is None or key == "Enter" else {}
            names = {"key": key, "windowsVirtualKeyCode": code or ord(key.upper())}
            self._ask("Input.dispatchKeyEvent", type="keyDown", **names, **writes)
            self._ask("Input.dispatchKeyEvent", type="keyUp", **names)

    def tab_to(self, name: str) -> None:
        """Walks with Tab alone to what a screen reader calls so."""
        named = "e.getAttribute('aria-label') || e.closest('label')?.innerText || e.innerText || ''"
        own = f"(e => ({named}).trim().replace(/\\s+/g, ' '))"
        for _ in range(200):
            self.press("Tab")
            if str(self.run(f"{own}(document.activeElement)")).startswith(name):
                return
        raise AssertionError(f"Tab never comes to {name!r}; the page says:\n{self.text}")

    def write(self, text: str) -> None:
        """In the place of what the field that one is in holds."""
        self.run("document.activeElement.select()")
        self.press(*text)

    def choose(self, begins_with: str) -> str:
        """With arrow keys, of the list that one is in, the first of its choices that begins so."""
        self.press("Home")
        chosen = "document.activeElement.selectedOptions[0].innerText"
        for _ in range(200):
            if (found := str(self.run(chosen))).startswith(begins_with):
                return found
            self.press("ArrowDown")
        raise AssertionError(f"no choice begins with {begins_with!r}; the last is {found!r}")

    def resize(self, width: int, height: int) -> None:
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme: str) -> None:
        """`dark` or `light`, as the machine's setting."""
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path) -> None:
        """Writes what the page looks like, as PNG."""
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))

    def num_printed_pages(self) -> int:
        """How many pages of paper it takes."""
        return len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(self._ask("Page.printToPDF")["data"])))

    def close(self) -> None:
        self._socket.close()

    def _ask(self, method: str, **params: Any) -> Any:
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            answer = json.loads(self._socket.recv(timeout=60))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer.get("method", ""), answer.get("params", {}))

    def _note(self, event: str, params: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event == "Network.loadingFinished":
            self.num_received_bytes += int(params["encodedDataLength"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"])[:1000])
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(params["args"])[:1000])
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")


class Browser(Page):
    """A browser with its first page. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        """folder: of its own, for the browser's data."""
        assert CHROMIUM is not None, "there is a browser"
        self._folder = folder
        self._process = subprocess.Popen(
            [CHROMIUM, *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Browser:
        try:
            self._devtools = f"http://127.0.0.1:{self._wait_for_port()}/json"
            pages = httpx.get(f"{self._devtools}/list", trust_env=False).json()
            [page] = [page for page in pages if page["type"] == "page"]
            super().__init__(page["webSocketDebuggerUrl"])
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._end()

    @contextmanager
    def new_page(self) -> Iterator[Page]:
        """A second tab of the same person, with the same cookies, before the first one until it is closed."""
        found = httpx.put(f"{self._devtools}/new?about:blank", trust_env=False).json()
        page = Page(found["webSocketDebuggerUrl"])
        try:
            yield page
        finally:
            page.close()
            httpx.get(f"{self._devtools}/close/{found['id']}", trust_env=False)
            self._ask("Page.bringToFront")

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


@contextmanager
def serving(*words: str) -> Iterator[str]:
    """The address that a command of Ludus says it serves, which ends with the block."""
    with serving_process(*words) as (address, _):
        yield address


@contextmanager
def serving_process(*words: str) -> Iterator[tuple[str, int]]:
    """The same, and the number of its process."""
    command = [sys.executable, "-m", "ludus", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = ""
        while (found := re.search(r"http://127\.0\.0\.1:[\w/?=#~-]+", said)) is None:
            line = process.stdout.readline()  # type: ignore[union-attr]
            assert line, f"the server did not start; it said:\n{said}"
            said += line
        yield found[0], process.pid
    finally:
        process.terminate()
        process.communicate(timeout=60)
