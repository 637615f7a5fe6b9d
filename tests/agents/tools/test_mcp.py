"""Tools of real MCP servers, over streams and HTTP; and servers that die, hang, fail, or never were."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ludus.agents.tools.answer import ToolLimits
from ludus.agents.tools.episode_tools import EpisodeTools
from ludus.agents.tools.tool_set import ToolSet
from ludus.errors import ConfigError, UserError
from ludus.types import ToolCall

SERVER = Path(__file__).with_name("mcp_server.py")

pytestmark = pytest.mark.anyio


def tool_file(folder: Path, servers: dict[str, Any], **mcp: Any) -> Path:
    """A YAML file of tools, which names a JSON file of servers beside it."""
    (folder / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    entry = {"config": {"type": "mcp"}, "mcp": {"mcp_servers_config_path": "servers.json", **mcp}}
    path = folder / "tools.yaml"
    path.write_text(json.dumps({"tools": [entry]}))
    return path


@asynccontextmanager
async def opened(path: Path, *, timeout_s: float = 30.0) -> AsyncIterator[EpisodeTools]:
    tool_set = ToolSet.load(path, limits=ToolLimits(timeout_s=timeout_s))
    await tool_set.setup()
    try:
        async with tool_set.open() as episode_tools:
            yield episode_tools
    finally:
        await tool_set.close()


async def say(episode_tools: EpisodeTools, name: str, /, **arguments: Any) -> str:
    return (await episode_tools.call(ToolCall("1", name, json.dumps(arguments)))).text


@pytest.fixture
def stdio(tmp_path: Path) -> Path:
    return tool_file(tmp_path, {"tests": {"command": sys.executable, "args": [str(SERVER)]}})


@contextmanager
def http_server(port: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, str(SERVER), str(port)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


async def test_tools_over_streams(stdio: Path) -> None:
    """Their schemas are whole, their answers text, and what they refuse is told to the model."""
    async with opened(stdio) as episode_tools:
        specs = {spec.name: spec for spec in episode_tools.specs}
        assert specs["add"].description == "Adds numbers."
        assert specs["add"].parameters["properties"]["numbers"]["items"] == {"type": "integer"}
        assert specs["add"].parameters["properties"]["note"]["default"] == "none"
        texts = await asyncio.gather(*(say(episode_tools, "add", numbers=[n, 1]) for n in range(3)))
        assert texts == ["1 (none)", "2 (none)", "3 (none)"]
        assert (await say(episode_tools, "fail")).startswith("Error: Error executing tool fail")
        assert "validation error" in await say(episode_tools, "add", numbers="many")
        assert (
            await say(episode_tools, "picture")
            == "Error: the tool answered with image, and this model reads text alone"
        )


async def test_a_server_that_dies_is_started_again(stdio: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The call that it leaves open is an error with its last words; the next call finds a new server."""
    async with opened(stdio) as episode_tools:
        first = await say(episode_tools, "whoami")
        last, open_one = await asyncio.gather(say(episode_tools, "die"), say(episode_tools, "hang"))
        assert "Connection closed" in last and "it was a good life" in last
        assert open_one.startswith("Error: the MCP server 'tests'")
        second = await say(episode_tools, "whoami")
        assert second.isdigit() and second != first
    assert "'tests' is connected to anew" in caplog.text


async def test_a_tool_that_never_answers_is_given_up(stdio: Path) -> None:
    """The server goes on with other calls."""
    async with opened(stdio, timeout_s=3.0) as episode_tools:
        assert await say(episode_tools, "add", numbers=[1]) == "1 (none)"
        hung, added = await asyncio.gather(say(episode_tools, "hang"), say(episode_tools, "add", numbers=[2]))
        assert (hung, added) == ("Error: the tool 'hang' did not answer within 3.0 s", "2 (none)")


async def test_tools_over_http(tmp_path: Path, port: int) -> None:
    """A server elsewhere; while it is gone its calls are errors, and when it is back they work again."""
    path = tool_file(tmp_path, {"far": {"url": f"http://127.0.0.1:{port}/mcp", "auth_token": "x"}})
    async with _http(port, path) as (process, episode_tools):
        assert await say(episode_tools, "add", numbers=[2, 3], note="far") == "5 (far)"
        assert (await say(episode_tools, "die")).startswith("Error: the MCP server 'far'")
        process.wait()
        assert (await say(episode_tools, "add", numbers=[1])).startswith("Error: the MCP server 'far'")
        with http_server(port):
            assert await say(episode_tools, "add", numbers=[4]) == "4 (none)"


@asynccontextmanager
async def _http(port: int, path: Path) -> AsyncIterator[tuple[subprocess.Popen[bytes], EpisodeTools]]:
    with http_server(port) as process:
        async with opened(path) as episode_tools:
            yield process, episode_tools


async def test_only_selected_tools_are_offered(tmp_path: Path) -> None:
    """verl's `tool_selected_list`; a name that no server has is an error."""
    servers = {"tests": {"command": sys.executable, "args": [str(SERVER)]}, "off": {"command": "x", "disabled": True}}
    async with opened(tool_file(tmp_path, servers, tool_selected_list=["whoami"])) as episode_tools:
        assert [spec.name for spec in episode_tools.specs] == ["whoami"]
    tool_set = ToolSet.load(tool_file(tmp_path, servers, tool_selected_list=["whoareyou"]))
    with pytest.raises(UserError, match="no MCP server has the tool 'whoareyou'; they have: add, whoami"):
        await tool_set.setup()


@pytest.mark.parametrize(
    ("server", "error"),
    [
        ({"command": "no-such-program-at-all"}, "cannot be reached: FileNotFoundError"),
        ({"command": sys.executable, "args": ["-c", "import sys; sys.exit('no config')"]}, "it last said: no config"),
        ({"url": "http://127.0.0.1:9/mcp"}, "cannot be reached: "),
    ],
)
async def test_a_server_that_cannot_be_reached_ends_the_setup(tmp_path: Path, server: Any, error: str) -> None:
    """With its name and its last words, before anything is played."""
    with pytest.raises(UserError) as raised:
        await ToolSet.load(tool_file(tmp_path, {"tests": server})).setup()
    assert "the MCP server 'tests'" in str(raised.value) and error in str(raised.value)


@pytest.mark.parametrize(
    ("server", "error"),
    [
        ({}, "either a command or a url, got None and None"),
        ({"command": "x", "url": "http://y"}, "either a command or a url"),
        ({"url": "http://y", "args": ["x"]}, "args of an MCP server cannot act: it has no command"),
        ({"command": "x", "comand": 1}, "mcpServers.tests: unknown key 'comand'; did you mean 'command'"),
        ({"url": "http://y", "type": "sse"}, "type"),
    ],
)
def test_wrong_files_of_servers_are_named(tmp_path: Path, server: Any, error: str) -> None:
    """The file, the key, what is allowed."""
    with pytest.raises(ConfigError) as raised:
        ToolSet.load(tool_file(tmp_path, {"tests": server}))
    assert error in str(raised.value) and "servers.json" in str(raised.value)
