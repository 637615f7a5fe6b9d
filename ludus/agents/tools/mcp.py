"""Tools of MCP servers: processes started here and used over their standard streams, or servers over HTTP.

Knows: the `mcp` package, how its answers become text.  Knows not: trajectories, which share the server.
Invariants: if a server dies, its open calls fail, and the next call connects again; the end of its stderr is kept, and
logged if it fails.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self, TextIO

import pydantic

from ludus.agents.tools.answer import ToolError
from ludus.agents.tools.base import BaseTool, ToolResponse
from ludus.agents.tools.deadline import forget
from ludus.agents.tools.schema import OpenAIFunctionToolSchema, read_schema
from ludus.errors import ConfigError, UserError
from ludus.processes.capture import Capture
from ludus.settings import Settings

if TYPE_CHECKING:
    import mcp

logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 60.0
"""Long, because servers started with `npx` and `uvx` are downloaded first."""
_LEAVE_TIMEOUT_S = 10.0
"""The package itself waits about 4 s for a process before it kills it."""
_HTTP_TIMEOUT_S, _HTTP_READ_TIMEOUT_S = 30.0, 300.0
"""A server may take long to answer; the time limit of a call is enforced elsewhere."""
_ERROR_BYTES = 4096
_CLOSED = -32000
"""The error code of the package for calls whose connection was lost."""


class McpTool(BaseTool):
    """One tool of a server."""

    def __init__(
        self, config: Mapping[str, Any] | None, tool_schema: OpenAIFunctionToolSchema | None, server: McpServer
    ) -> None:
        super().__init__(config, tool_schema)
        self._server = server

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, None, dict[str, Any]]:
        return ToolResponse(text=await self._server.call(self.name, parameters)), None, {}


class McpAddress(Settings):
    """Where a server is: a command that is started, or a URL."""

    command: str | None = None
    """None: there is a `url`."""
    args: tuple[str, ...] = ()
    env: dict[str, str] = pydantic.Field(default_factory=dict)
    """Environment variables, besides PATH, HOME and the like, which it always gets."""
    cwd: str | None = None
    url: str | None = None
    """URL of its streamable HTTP endpoint. None: there is a `command`."""
    headers: dict[str, str] = pydantic.Field(default_factory=dict)
    auth_token: str | None = None
    """Sent as `Authorization: Bearer …`, unless `headers` sets another."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ConfigError(f"an MCP server has either a command or a url, got {self.command!r} and {self.url!r}")
        needed = {"args": "command", "env": "command", "cwd": "command", "headers": "url", "auth_token": "url"}
        for name, needs in needed.items():
            if getattr(self, name) and getattr(self, needs) is None:
                raise ConfigError(f"{name} of an MCP server cannot act: it has no {needs}")
        return self


class McpServer:
    """A server as a source of tools; its tools serve all trajectories of a run."""

    def __init__(
        self,
        name: str,
        address: McpAddress,
        *,
        tool_class: type[McpTool] = McpTool,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """tool_class, config: for making its tools."""
        self.name = name
        self._address = address
        self._tool_class = tool_class
        self._config = dict(config or {})
        self._link: _Link | None = None
        self._connecting = asyncio.Lock()

    def __repr__(self) -> str:
        where = self._address.url or " ".join((self._address.command or "", *self._address.args))
        return f"McpServer({self.name!r}, {where!r}, connected={self._link is not None and self._link.is_alive})"

    async def setup(self) -> Sequence[BaseTool]:
        """Connect; returns all of its tools. Raises UserError if it cannot be reached."""
        try:
            link = await self._connected()
            return [self._tool_class(self._config, _schema(tool), self) for tool in await link.tools()]
        except ToolError as error:
            await self.close()
            raise UserError(str(error)) from error

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.leave()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The tool's answer. Raises ToolError with the error of the tool or of the connection."""
        link = await self._connected()
        return _text(await link.call(name, arguments))

    async def _connected(self) -> _Link:
        async with self._connecting:
            if self._link is not None and not self._link.is_alive:
                logger.warning("the MCP server %r is connected to anew: %s", self.name, self._link.failure)
                await self.close()
            if self._link is None:
                link = _Link(self.name, self._address)
                await link.enter()
                self._link = link
            return self._link


class McpServers:
    """Several servers as one source, with a selection of their tools."""

    def __init__(self, servers: Sequence[McpServer], selected: Sequence[str] | None = None) -> None:
        """selected: names of tools, of any of the servers. None: all tools of all servers."""
        self._servers = tuple(servers)
        self._selected = None if selected is None else tuple(selected)

    def __repr__(self) -> str:
        return f"McpServers({', '.join(server.name for server in self._servers)})"

    async def setup(self) -> Sequence[BaseTool]:
        """As for one server. If one cannot be reached, the others are disconnected."""
        tools: list[BaseTool] = []
        try:
            for server in self._servers:
                tools += await server.setup()
            if self._selected is None:
                return tools
            offered = [tool.name for tool in tools]
            for name in self._selected:
                if name not in offered:
                    raise UserError(f"no MCP server has the tool {name!r}; they have: {', '.join(offered) or 'none'}")
            return [tool for tool in tools if tool.name in self._selected]
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        for server in self._servers:
            await server.close()


class _Link:
    """One connection, held by a task of its own: the package must exit it in the task that entered it."""

    def __init__(self, name: str, address: McpAddress) -> None:
        self._name = name
        self._address = address
        self._leave = asyncio.Event()
        self._client: asyncio.Future[mcp.Client] = asyncio.get_running_loop().create_future()
        self._is_closed = False
        self._said = ""
        """The end of the process's stderr."""
        self._task = asyncio.create_task(self._hold())
        self._task.add_done_callback(forget)

    @property
    def is_alive(self) -> bool:
        return not self._is_closed and not self._task.done()

    @property
    def failure(self) -> str:
        """What went wrong with the connection."""
        error = self._task.exception() if self._task.done() else None
        why = "the connection was closed" if error is None else ", ".join(_reasons(error))
        return why + (f"; it last said: {self._said}" if self._said else "")

    async def enter(self) -> None:
        """Connect. Raises ToolError if that does not succeed in time."""
        either: set[asyncio.Future[Any]] = {self._task, self._client}
        try:
            await asyncio.wait(either, timeout=_CONNECT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        if not self._client.done():
            why = self.failure if self._task.done() else f"no answer within {_CONNECT_TIMEOUT_S:g} s"
            self._task.cancel()
            raise ToolError(f"the MCP server {self._name!r} cannot be reached: {why}")

    async def leave(self) -> None:
        self._leave.set()
        await asyncio.wait({self._task}, timeout=_LEAVE_TIMEOUT_S)
        self._task.cancel()

    async def tools(self) -> list[Any]:
        """All tools of the server, from every page of its list."""
        tools: list[Any] = []
        cursor: str | None = None
        while True:
            page = await self._asked(self._client.result().list_tools(cursor=cursor))
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                return tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        return await self._asked(self._client.result().call_tool(name, dict(arguments)))

    async def _asked(self, request: Any) -> Any:
        """The answer to a request. Raises ToolError if the server refuses, or disappears before it answers."""
        asking = asyncio.ensure_future(request)
        try:
            await asyncio.wait({asking, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asking.add_done_callback(forget)
            if not asking.done():
                asking.cancel()
        if not asking.done() or asking.cancelled():
            self._is_closed = True
            raise ToolError(f"the MCP server {self._name!r} is gone: {self.failure}")
        error = asking.exception()
        if error is None:
            return asking.result()
        if isinstance(error, _module().MCPError):
            self._is_closed = self._is_closed or error.code == _CLOSED
            gone = f" ({self.failure})" if self._is_closed else ""
            raise ToolError(f"the MCP server {self._name!r} says: {error.message}{gone}") from error
        self._is_closed = True
        raise ToolError(f"the MCP server {self._name!r} failed: {type(error).__name__}: {error}") from error

    async def _hold(self) -> None:
        async with AsyncExitStack() as stack:
            with self._hearing_errors() as errors:
                transport = await self._transport(stack, errors)
                client = await stack.enter_async_context(_module().Client(transport))
                self._client.set_result(client)
                await self._leave.wait()

    async def _transport(self, stack: AsyncExitStack, errors: TextIO) -> Any:
        address = self._address
        if address.command is not None:
            parameters = _module().StdioServerParameters(
                command=address.command, args=list(address.args), env=dict(address.env), cwd=address.cwd
            )
            return _module().stdio_client(parameters, errlog=errors)
        httpx2 = importlib.import_module("httpx2")  # what the package itself speaks HTTP with
        timeout = httpx2.Timeout(_HTTP_TIMEOUT_S, read=_HTTP_READ_TIMEOUT_S)
        token = {} if address.auth_token is None else {"Authorization": f"Bearer {address.auth_token}"}
        client = httpx2.AsyncClient(headers={**token, **address.headers}, timeout=timeout)
        http_client = await stack.enter_async_context(client)
        return _module("mcp.client.streamable_http").streamable_http_client(address.url, http_client=http_client)

    @contextmanager
    def _hearing_errors(self) -> Iterator[TextIO]:
        """A file for a process's stderr, the end of which is kept."""
        loop = asyncio.get_running_loop()
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        capture = Capture(read_fd, _ERROR_BYTES)

        def drain() -> None:
            if not capture.drain_nowait():
                loop.remove_reader(read_fd)
            self._said = capture.text().strip()[-500:]

        loop.add_reader(read_fd, drain)
        try:
            with os.fdopen(write_fd, "w") as errors:
                yield errors
        finally:
            drain()
            loop.remove_reader(read_fd)
            capture.close()


def _schema(tool: Any) -> OpenAIFunctionToolSchema:
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return read_schema({"type": "function", "function": function}, f"the schema of the MCP tool {tool.name!r}")


def _text(result: Any) -> str:
    """An answer as text. Raises ToolError for an error, and for content that is not text."""
    parts: list[str] = []
    for block in result.content:
        resource = getattr(block, "resource", None)  # the package's classes of blocks have no field in common
        text = getattr(block, "text", None) or getattr(resource, "text", None) or getattr(block, "uri", None)
        if text is None and block.type != "text":
            raise ToolError(f"the tool answered with {block.type}, and this model reads text alone")
        parts.append(str(text or ""))
    text = "\n".join(parts)
    if result.is_error:
        raise ToolError(text or "the tool failed and did not say why")
    return text


def _reasons(error: BaseException) -> Iterator[str]:
    """The innermost errors of nested exception groups."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _reasons(one)
    else:
        yield f"{type(error).__name__}: {error}"


def _module(name: str = "mcp") -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(f"tools of MCP servers need {error.name}; run `pip install 'ludus[mcp]'`") from None
