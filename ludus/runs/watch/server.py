"""Serves the page of runs on this machine only, protected by a key.

Knows: the application, the server.  Knows not: who opens the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from ludus.http.keys import new_key
from ludus.http.server import HttpServer
from ludus.runs.watch.app import watch_app
from ludus.runs.watch.folder import RunsFolder


@contextmanager
def open_watcher(folder: RunsFolder, *, port: int = 0, key: str | None = None) -> Iterator[str]:
    """Serve the page until the block ends; returns its link. The folder is closed at the end.

    port: 0: any free port.  key: None: a new one.  Raises UserError if the port is taken.
    """
    key = new_key() if key is None else key
    server = HttpServer(watch_app(folder, key), name="watcher")
    try:
        url = server.start("127.0.0.1", port)
        only = next(iter(folder.ids()), "") if folder.is_run else ""
        yield f"{url}/?key={key}#/" + (f"run/{quote(only, safe='')}" if only else "")
    finally:
        server.stop()
        folder.close()
