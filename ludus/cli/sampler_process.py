"""Starts, asks and stops the process that answers with the models of a run, for the process that serves the page.

Knows: the life of that process.  Knows not: its answers, models.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from ludus.api.elsewhere import served_models
from ludus.errors import AgentError, BackendError
from ludus.http.sse import coming_data
from ludus.processes.end_with_parent import end_with_parent
from ludus.processes.program import PROGRAM
from ludus.runs.watch.question import ANSWERS, Json, Question

_STOP_S = 10.0
_FIRST_FAULT, _FIRST_OF_OURS = 400, 500


class SamplerProcess:
    """A `Sampler` for one run at a time, in a process that starts at the first question and ends with this one."""

    def __init__(self, served: Sequence[str] = (), served_key: str | None = None) -> None:
        """served, served_key: as `served_models` takes them (there `key_variable`). Raises as that does."""
        self.elsewhere = {
            name: endpoint.base_url for name, endpoint in served_models(served, key_variable=served_key).items()
        }
        self._options = [option for line in served for option in ("--model", line)]
        self._options += [] if served_key is None else ["--model-key-env", served_key]
        self._starting = asyncio.Lock()
        self._lock = threading.Lock()
        self._run: Path | None = None
        self._process: subprocess.Popen[str] | None = None
        self._address: Any = None
        self._asked: Counter[Path] = Counter()
        """Number of questions in progress, by run."""

    def __repr__(self) -> str:
        return f"SamplerProcess({None if self._run is None else str(self._run)!r})"

    async def answer(self, run: Path, question: Question) -> AsyncIterator[Json]:
        self._asked[run] += 1
        try:
            async with self._starting:  # a question cancelled while it waits here starts nothing
                address = await asyncio.to_thread(self._started, run)
            headers = {"authorization": f"Bearer {address['key']}", "content-type": "application/json"}
            async with (
                httpx.AsyncClient(trust_env=False, timeout=httpx.Timeout(None, connect=_STOP_S)) as client,
                client.stream(
                    "POST", address["url"] + ANSWERS, headers=headers, content=question.model_dump_json()
                ) as answer,
            ):
                if answer.status_code >= _FIRST_FAULT:
                    body = json.loads(await answer.aread())
                    raise AgentError(body.get("detail", "it was refused"), status=answer.status_code)
                async for data in coming_data(answer):
                    event: Json = json.loads(data)
                    if "detail" in event:
                        raise _error(event)
                    yield event
        except httpx.TransportError as error:
            raise BackendError(
                f"the process that answers for {run.name!r} has ended ({error or type(error).__name__}); ask again, "
                "which starts another; where memory is short, end something else first"
            ) from error
        finally:
            self._asked[run] -= 1

    def close(self) -> None:
        with self._lock:
            self._end()

    def _started(self, run: Path) -> Any:
        """Start the run's process if needed; returns its address and key. Raises AgentError while that of another run
        is answering, BackendError if it does not start."""
        with self._lock:
            if self._process is not None and self._process.poll() is None and self._run == run:
                return self._address
            if any(num for other, num in self._asked.items() if other != run):
                raise AgentError(f"The models of {self._run} are answering; ask again when they have.", status=409)
            self._end()
            command = end_with_parent((*PROGRAM, "sampler", str(run), *self._options))
            self._run = run
            # In its own session: Ctrl-C reaches only the page's process, which then stops this one.
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
            assert self._process.stdout is not None, "it was asked for"
            line = self._process.stdout.readline()
            said = json.loads(line) if line.startswith("{") else {}
            if "url" not in said:
                self._end()
                why = said.get("detail", "its process said why where the page was started")
                raise BackendError(f"nothing answers for {run.name!r}: {why}")
            self._address = said
            return said

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None


def _error(event: Json) -> Exception:
    status = int(event["status"])
    return BackendError(event["detail"]) if status >= _FIRST_OF_OURS else AgentError(event["detail"], status=status)
