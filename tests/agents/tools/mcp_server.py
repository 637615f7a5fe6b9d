"""A real MCP server for the tests: over its streams, or over HTTP on the port that it is given."""

import asyncio
import os
import sys
from typing import Any

from mcp.server.mcpserver import MCPServer

server = MCPServer("tests", log_level="CRITICAL")


@server.tool()
def add(numbers: list[int], note: str = "none") -> str:
    """Adds numbers."""
    return f"{sum(numbers)} ({note})"


@server.tool()
def whoami() -> str:
    """The process of the server."""
    return str(os.getpid())


@server.tool()
def die() -> str:
    """Ends the server at once."""
    sys.stderr.write("it was a good life\n")
    sys.stderr.flush()
    os._exit(3)


@server.tool()
def fail() -> str:
    raise ValueError("bad luck")


@server.tool()
async def hang() -> str:
    await asyncio.Event().wait()
    return ""


@server.tool()
def picture() -> Any:
    from mcp.server.mcpserver import Image

    return Image(data=b"\x89PNG", format="png")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
