"""A plain function as a tool: its signature is the schema, its docstring the description.

Knows: functions, threads.  Knows not: trajectories; a function has no state that Ludus would know of.
Invariant: a function that blocks never holds up the event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, overload

from ludus.agents.tools.base import BaseTool
from ludus.agents.tools.schema import OpenAIFunctionToolSchema, read_schema
from ludus.agents.tools.signature import Signature

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

Schema = OpenAIFunctionToolSchema | Mapping[str, Any]

_MARK = "__ludus_tool__"


class FunctionTool(BaseTool):
    """A tool that is a function: async, or one that may block."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        schema: Schema | None = None,
    ) -> None:
        """schema: what the model is told in place of the signature; arguments are then passed as they come."""
        self._function = function
        self._signature = Signature(function) if schema is None else None
        own_name = name or _name_of(function)
        if self._signature is not None:
            super().__init__(tool_schema=self._signature.schema(own_name))
        else:
            super().__init__(tool_schema=read_schema(schema or {}, f"the schema of {own_name}"))

    async def execute(self, instance_id: str, parameters: dict[str, Any]) -> Any:  # type: ignore[override]  # noqa: ARG002
        """What the function returns; it has no instance, and takes nothing from a row."""
        arguments = parameters if self._signature is None else self._signature.read(parameters)
        if _is_async(self._function):
            return await self._function(**arguments)
        return await _in_thread(lambda: self._function(**arguments))


@overload
def function_tool(function: FunctionT) -> FunctionT: ...


@overload
def function_tool(
    function: str | None = None,
    *,
    name: str | None = None,
    schema: OpenAIFunctionToolSchema | Mapping[str, Any] | None = None,
) -> Callable[[FunctionT], FunctionT]: ...


def function_tool(function: Any = None, *, name: str | None = None, schema: Any = None) -> Any:
    """The function itself, marked as a tool: `@function_tool`, `@function_tool("name")`, `@function_tool(schema=…)`.

    Raises UserError where it is defined if a model could not call it.
    """
    if isinstance(function, str) or function is None:
        given = function if isinstance(function, str) else name
        return lambda decorated: _marked(decorated, given, schema)
    return _marked(function, name, schema)


def functions_of(namespace: Mapping[str, Any]) -> Iterator[FunctionTool]:
    """The tools among the names of a module, in the order of their definition."""
    seen: set[int] = set()
    for value in namespace.values():
        tool = tool_of(value)
        if tool is not None and id(tool) not in seen:
            seen.add(id(tool))
            yield tool


def tool_of(value: object) -> FunctionTool | None:
    """The tool that a function was marked as. None: it was not."""
    tool = getattr(value, _MARK, None) if inspect.isroutine(value) else None
    return tool if isinstance(tool, FunctionTool) else None


def _marked(function: Any, name: str | None, schema: Any) -> Any:
    setattr(function, _MARK, FunctionTool(function, name=name, schema=schema))
    return function


def _name_of(function: Callable[..., Any]) -> str:
    name: str = getattr(function, "__name__", type(function).__name__)
    return name


def _is_async(function: Callable[..., Any]) -> bool:
    call = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    return inspect.iscoroutinefunction(call)


async def _in_thread(call: Callable[[], Any]) -> Any:
    """What the call returns, from a daemon thread of its own: one that never ends holds up nothing but itself."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if future.done():  # nobody waits any more
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def run() -> None:
        value, failure = None, None
        try:
            value = context.run(call)
        except BaseException as error:  # handed to who waits
            failure = RuntimeError(f"it called sys.exit({error.code!r})") if isinstance(error, SystemExit) else error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, failure)

    context = contextvars.copy_context()
    threading.Thread(target=run, name="ludus-tool", daemon=True).start()
    return await future
