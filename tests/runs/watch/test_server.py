"""The watcher as a server, from its start to its end."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.runs.watch.conftest import watching, write_run


def test_who_ends_the_watcher_while_pages_are_open_reads_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The streams of open pages never end by themselves; that they are cut off is no fault of the application."""
    folder = write_run(tmp_path, num_steps=2)
    is_listening = threading.Barrier(3)

    def listen(link: str, headers: dict[str, str]) -> None:
        with suppress(httpx.TransportError), httpx.stream("GET", link, headers=headers, timeout=60) as answer:
            for number, _ in enumerate(answer.iter_lines()):
                if number == 0:
                    is_listening.wait(30)

    with watching(folder) as watched:
        how = (f"{watched.client.base_url}/api/runs/run/events", dict(watched.client.headers))
        pages = [threading.Thread(target=listen, args=how) for _ in range(2)]
        for page in pages:
            page.start()
        is_listening.wait(30)
    for page in pages:
        page.join(30)
        assert not page.is_alive()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
