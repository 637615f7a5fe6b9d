"""Runs an agent in another Python environment, whose libraries may conflict with those of Ludus.

Knows: processes of that Python, the lines exchanged with them.  Knows not: groups, training.
Invariants: an episode ends at its deadline, and its process with it; nothing of Ludus is imported there.

    this process                                    a process of the other Python
    row, base_url, api_key, variables ────line────▶ the agent plays, over HTTP
    value, or traceback ◀─────────────────line───── however that ends; what it prints is on stderr
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from ludus.agents.adapter import EpisodeContext
from ludus.episodes.outcome import DEADLINE_CODE, Raised, Returned
from ludus.episodes.reward import Result
from ludus.errors import UserError
from ludus.processes.ended import how_it_ended, kill_group
from ludus.processes.environment import handed_on
from ludus.rollout import own_python_program
from ludus.rollout.playing import received
from ludus.rollout.subproc import agent_environment, time_left_s
from ludus.types import Span

MOST_LINES = 200  # of what an agent prints: what a person reads
LAST_LINES = 3  # of it, beside the end of a process that said nothing else
SETUP_S = 120.0  # importing a framework on a busy machine takes half a minute


class OwnPythonAgentAdapter:
    """Plays episodes of one agent in processes of another Python, which start when they are first needed."""

    def __init__(
        self,
        python: str,
        reference: object,
        kwargs: Mapping[str, Any] | None = None,
        *,
        max_workers: int,
        variables: Sequence[str] = (),
    ) -> None:
        """python: the interpreter.  reference: the agent's import string there.  kwargs: arguments of its constructor
        or of the function.  variables: environment variables that are passed on to the agent.

        Raises UserError if the agent cannot be set up there.
        """
        if not isinstance(reference, str):
            raise UserError(
                f"rollout.agent.python={python!r} imports the agent itself: name it, workflow='pkg.mod:Name' or "
                f"'path/to/file.py:Name', and pass no object; got {reference!r:.100}"
            )
        self.name = reference
        self._command = [str(Path(python).expanduser()), own_python_program.__file__, reference, _json(kwargs or {})]
        self._env = handed_on(variables)
        self._free = asyncio.Semaphore(max_workers)
        self._threads = ThreadPoolExecutor(max_workers, thread_name_prefix="ludus-own-python")
        self._idle: list[_Program] = []
        self._placed: dict[str, _Program] = {}
        """By id of the running episode."""
        self._idle.append(self._started())

    def __repr__(self) -> str:
        return f"OwnPythonAgentAdapter({self.name}, {self._command[0]!r})"

    async def setup(self) -> None:
        """Does nothing: the agent is set up in each process when that starts."""

    async def close(self) -> None:
        """End all processes."""
        for program in (*self._idle, *self._placed.values()):
            program.kill()
        self._idle.clear()
        self._threads.shutdown(wait=False)

    @asynccontextmanager
    async def place(self, episode_id: str) -> AsyncIterator[None]:
        """Reserve a process with the agent set up in it, for this episode and the length of the block."""
        async with self._free:
            program = self._idle.pop() if self._idle else await asyncio.to_thread(self._started)
            self._placed[episode_id] = program
            try:
                yield
            finally:
                del self._placed[episode_id]
                if program.is_usable:
                    self._idle.append(program)
                else:
                    program.kill()

    async def play(self, data: Mapping[str, Any], context: EpisodeContext) -> object:
        """Play in the episode's process; returns what the agent returned. Raises RemoteAgentError if the agent raised
        or its process ended."""
        program, started_at = self._placed[context.info.episode_id], time.time()
        asked = {
            "data": dict(data),
            "base_url": context.base_url,
            "api_key": context.api_key,
            "env": agent_environment(context.base_url, context.api_key),
        }
        left_s = time_left_s(context)
        line = _json(asked)
        answering = asyncio.get_running_loop().run_in_executor(self._threads, program.ask, line)
        try:
            async with asyncio.timeout(left_s):
                said = await asyncio.shield(answering)
        except BaseException as error:
            program.kill()
            if not isinstance(error, TimeoutError):
                raise
            said = {
                "error": f"the agent was still playing after {left_s:.1f} s; its process was killed",
                "codes": DEADLINE_CODE,
            }
        failed = None if "value" in said else Raised(said["error"], said.get("codes", ""))
        span = Span(
            kind="process",
            name=self.name,
            started_at=started_at,
            finished_at=time.time(),
            outputs={"stderr": program.take_printed()},
            error=None if failed is None else "Raised",
        )
        ending = Returned(_result(said["value"])) if failed is None else failed
        return received(ending, context, spans=(span,), agent_metrics={})

    def _started(self) -> _Program:
        program = _Program(self._command, self._env)
        said = program.ready()
        if "ready" in said:
            return program
        program.kill()
        raise UserError(f"the agent {self.name} cannot be set up in {self._command[0]}: {said['error'].strip()}")


class _Program:
    """One process of the other Python."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        pipe = subprocess.PIPE
        options: dict[str, Any] = {"errors": "replace", "env": env, "start_new_session": True}
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **options)
        except OSError as error:
            raise UserError(f"rollout.agent.python={command[0]!r} cannot be started: {error}") from None
        self._printed: deque[str] = deque(maxlen=MOST_LINES)
        threading.Thread(target=self._listen, name="ludus-own-python-stderr", daemon=True).start()

    @property
    def is_usable(self) -> bool:
        return self._process.poll() is None

    def ready(self) -> dict[str, Any]:
        """Its message after setting up the agent; blocks. A process that takes too long is killed."""
        late = threading.Timer(SETUP_S, self.kill)
        late.start()
        try:
            return self._line()
        finally:
            late.cancel()

    def ask(self, line: str) -> dict[str, Any]:
        """Send a row; returns how the episode ended. Blocks."""
        assert self._process.stdin is not None, "it is a pipe"
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it has ended, which the line says
        return self._line()

    def take_printed(self) -> str:
        """The last lines that the agent printed since the previous call."""
        lines = [self._printed.popleft() for _ in range(len(self._printed))]
        return "".join(lines)

    def kill(self) -> None:
        """Kill it with everything that it started. Killing twice is allowed."""
        if self._process.poll() is None:
            kill_group(self._process.pid)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what was not yet written goes nowhere
                assert pipe is not None, "both are pipes"
                pipe.close()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None, "it is a pipe"
        line = self._process.stdout.readline()
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        how = how_it_ended(self._process.wait())
        words = "".join(list(self._printed)[-LAST_LINES:]).strip()
        return {"error": f"the agent's process ended in the middle of the episode: {how}\n{words}".strip()}

    def _listen(self) -> None:
        assert self._process.stderr is not None, "it is a pipe"
        with self._process.stderr as lines:
            for line in lines:
                self._printed.append(line)


def _result(value: Any) -> object:
    """A mapping with `reward` becomes a `Result` with metrics; any other value stays as it is."""
    if isinstance(value, dict) and "reward" in value and value.keys() <= {"reward", "metrics", "metadata"}:
        return Result(**value)
    return value


def _json(value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"an agent in a Python of its own is sent JSON: {error}; got {value!r:.200}") from None
