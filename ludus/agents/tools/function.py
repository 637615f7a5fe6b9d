"""A plain function as a tool: its signature is the schema, its docstring the description.

Knows: functions, processes and threads to run them in.  Knows not: trajectories; functions keep no state for them.
Invariant: a blocking function never blocks the event loop, and one that hangs in a process is killed.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from ludus.agents.signatures import is_async
from ludus.agents.tools.base import BaseTool
from ludus.agents.tools.deadline import DeadlineError, with_deadline
from ludus.agents.tools.schema import OpenAIFunctionToolSchema, read_schema
from ludus.agents.tools.signature import Signature
from ludus.errors import UserError
from ludus.processes.calls import RemoteFunction, WorkerTimeoutError
from ludus.processes.pool import WorkerPool

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
Schema = OpenAIFunctionToolSchema | Mapping[str, Any]
RunsIn = Literal["process", "thread"]

_MARK = "__ludus_tool__"
_MAX_PROCESSES = 4
"""Most processes of one function, started as calls need them."""


class FunctionTool(BaseTool):
    """A tool that is a function: async, or one that may block."""

    keeps_time = True  # starting a process is not the function's time

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        schema: Schema | None = None,
        runs_in: RunsIn = "process",
    ) -> None:
        """schema: shown to the model instead of the signature; arguments are then passed unchecked.
        runs_in: where a function that is not async runs: in processes, which are killed at the deadline and share no
        variables; or in threads of this process, which share all variables and cannot be stopped if they hang."""
        self.function = function
        self._is_process = runs_in == "process" and not is_async(function)
        self.max_concurrent = _MAX_PROCESSES if self._is_process else None
        self._signature = Signature(function) if schema is None else None
        self._pool: WorkerPool | None = None
        self._remote: RemoteFunction | None = None
        own_name = name or str(getattr(function, "__name__", type(function).__name__))
        own = schema if self._signature is None else self._signature.schema(own_name)
        super().__init__(tool_schema=read_schema(own or {}, f"the schema of {own_name}"))

    async def setup(self) -> None:
        """Raises UserError if the function cannot be sent to a process."""
        if not self._is_process:
            return
        try:
            self._remote = RemoteFunction.of(self.function)
        except UserError as error:
            raise UserError(
                f"the tool {self.name!r}: {error}; or let it run in threads: @function_tool(runs_in='thread')"
            ) from error
        self._pool = WorkerPool(_MAX_PROCESSES, name=f"tool-{self.name}")

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    async def execute(  # type: ignore[override]  # it has no instance, and takes nothing from a row
        self,
        instance_id: str,
        parameters: dict[str, Any],
        *,
        timeout_s: float | None,
    ) -> Any:
        """Call the function. Raises DeadlineError after `timeout_s`."""
        arguments = parameters if self._signature is None else self._signature.read(parameters)
        if is_async(self.function):
            return await with_deadline(self.function(**arguments), timeout_s)
        if not self._is_process:
            return await with_deadline(_in_thread(lambda: self.function(**arguments)), timeout_s)
        assert self._pool is not None and self._remote is not None, f"{self!r} was set up"
        try:
            return await self._pool.call(self._remote, kwargs=arguments, timeout_s=timeout_s)
        except WorkerTimeoutError:
            raise DeadlineError from None


class _Mark(TypedDict, total=False):
    """The options stored on a decorated function, for `FunctionTool`; a plain mapping, because the function may be
    pickled for another process."""

    name: str | None
    schema: Schema | None
    runs_in: RunsIn


@overload
def function_tool(function: FunctionT) -> FunctionT: ...


@overload
def function_tool(function: str | None = None, **how: Unpack[_Mark]) -> Callable[[FunctionT], FunctionT]: ...


def function_tool(function: Any = None, **how: Unpack[_Mark]) -> Any:
    """Marks a function as a tool: `@function_tool`, `@function_tool("name")`, `@function_tool(schema=…)`.

    Returns the function itself. Raises UserError if a model could not call it. Options as for `FunctionTool`.
    """
    if isinstance(function, str):
        how["name"] = function

    def mark(decorated: FunctionT) -> FunctionT:
        FunctionTool(decorated, **how)
        setattr(decorated, _MARK, how)
        return decorated

    return mark if function is None or isinstance(function, str) else mark(function)


def functions_of(namespace: Mapping[str, Any]) -> Iterator[FunctionTool]:
    """The tools defined in a module's namespace, in order of definition."""
    seen: set[int] = set()
    for value in namespace.values():
        if id(value) not in seen and (tool := tool_of(value)) is not None:
            seen.add(id(value))
            yield tool


def tool_of(value: object) -> FunctionTool | None:
    """The tool for a marked function. None: it is not marked."""
    mark: _Mark | None = getattr(value, _MARK, None) if inspect.isroutine(value) else None
    return None if mark is None or not callable(value) else FunctionTool(value, **mark)


async def _in_thread(call: Callable[[], Any]) -> Any:
    """Run the call on a daemon thread of its own, so that a call that never ends delays nothing else."""
    returned: Future[Any] = Future()
    returned.set_running_or_notify_cancel()  # who waits may give up; the thread goes on, and says so to nobody
    context = contextvars.copy_context()

    def run() -> None:
        try:
            returned.set_result(context.run(call))
        except BaseException as error:  # handed to who waits
            returned.set_exception(error)

    threading.Thread(target=run, name="ludus-tool", daemon=True).start()
    return await asyncio.wrap_future(returned)
