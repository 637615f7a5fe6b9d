"""verl's lists of tools, for loops that load them themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ludus.agents.tools.base import BaseTool
from ludus.compat.verl.tools import function_tool as module
from ludus.compat.verl.tools.function_tool import FUNCTION_TOOL_REGISTRY, FunctionTool, function_tool
from ludus.compat.verl.tools.tool_registry import initialize_tools_from_config, load_all_tools
from ludus.errors import UserError

FILE = """
from ludus.compat.verl.tools.function_tool import function_tool

@function_tool("double")
def double(number: int) -> dict:
    '''Doubles.

    Args:
        number: what to double.
    '''
    return {"is": 2 * number}

@function_tool
async def shout(text: str) -> str:
    '''Shouts.

    Args:
        text: what to shout.
    '''
    return text.upper()
"""
YAML = "tools: [{class_name: ludus.compat.verl.tools.gsm8k_tool.Gsm8kTool, config: {type: native}}]\n"


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    known = dict(FUNCTION_TOOL_REGISTRY)
    yield
    FUNCTION_TOOL_REGISTRY.clear()
    FUNCTION_TOOL_REGISTRY.update(known)


def test_a_file_is_loaded_once_and_its_tools_can_be_called(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each by its name, awaited or in a thread; a second file of one name takes its place and says so."""
    (tmp_path / "mine.py").write_text(FILE)
    double, shout = module.load_function_tools_from_path(str(tmp_path / "mine.py"))
    assert module.load_function_tools_from_path(str(tmp_path / "mine.py"))[0] is double
    assert (double.name, double.is_async, shout.name, shout.is_async) == ("double", False, "shout", True)
    assert double.tool_schema.function.parameters.properties["number"].description == "what to double."  # type: ignore[union-attr]
    assert asyncio.run(double.call({"number": 4})) == {"is": 8} and asyncio.run(shout.call({"text": "a"})) == "A"
    assert module.get_function_tool("double") is double
    with pytest.raises(KeyError, match="no function tool 'doubl'; did you mean 'double'"):
        module.get_function_tool("doubl")
    assert not caplog.records

    @function_tool("double")
    def other() -> int:
        """Doubles nothing."""
        return 1

    assert f"the function tool 'double' was {double.fn.__module__}.double and is" in caplog.text
    with pytest.raises(FileNotFoundError, match=r"does not exist: nowhere\.py"):
        module.load_function_tools_from_path("nowhere.py")


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("text", ("text", 0.0, {})),
        ({"a": 1}, ('{"a":1}', 0.0, {})),
        (("text", None), ("text", 0.0, {})),
        (("text", 0.5, {"n": 1}), ("text", 0.5, {"n": 1})),
        (object, (str(object), 0.0, {})),
    ],
)
def test_what_a_function_returned_in_three_parts(returned: Any, expected: tuple[str, float, dict[str, int]]) -> None:
    response, reward, metrics = module.normalize_function_tool_return(returned)
    assert (response.text, reward, metrics) == expected
    with pytest.raises(TypeError, match="length 1, 2, or 3"):
        module.normalize_function_tool_return(())


def undocumented(x: str) -> str:
    return x


def untyped(x) -> str:  # type: ignore[no-untyped-def]
    """Doc.

    Args:
        x: a thing.
    """
    return str(x)


def partial(x: int, y: int) -> int:
    """Adds.

    Args:
        x: only this is described.
    """
    return x + y


def open_ended(**more: int) -> int:
    """Sums."""
    return sum(more.values())


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (undocumented, "undocumented has no docstring"),
        (untyped, "untyped is missing a type hint for the argument 'x'"),
        (partial, "partial has no description for the argument 'y'"),
        (open_ended, "open_ended has the variadic parameter 'more'"),
    ],
)
def test_a_function_says_what_it_is_where_it_is_defined(function: Any, what: str) -> None:
    """As verl demands it; a schema of one's own says it as well."""
    with pytest.raises(ValueError, match=what):
        function_tool("any")(function)
    assert "any" not in FUNCTION_TOOL_REGISTRY
    function_tool("any", schema={"type": "function", "function": {"name": "any"}})(function)
    assert FUNCTION_TOOL_REGISTRY["any"].fn is function


def test_a_name_is_one_function_of_a_module() -> None:
    """The same one may be defined again, as a cell of a notebook that is run twice does."""

    def define() -> Any:
        def first() -> None:
            """Is the first."""

        return first

    function_tool("twice")(define())
    function_tool("twice")(define())

    def second() -> None:
        """Is the second."""

    with pytest.raises(UserError, match="'twice' is already registered"):
        function_tool("twice")(second)


def test_tools_of_both_files_are_one_list(tmp_path: Path) -> None:
    """New objects of classes, the same functions; two of one name are an error."""
    (tmp_path / "tools.yaml").write_text(YAML)
    (tmp_path / "both.py").write_text(FILE)
    files = (str(tmp_path / "tools.yaml"), str(tmp_path / "both.py"))
    solve, double, _ = load_all_tools(*files)
    again = load_all_tools(*files)
    assert isinstance(solve, BaseTool) and isinstance(double, FunctionTool) and not isinstance(double, BaseTool)
    assert again[0] is not solve and again[1] is double
    assert load_all_tools(None, None) == []
    (tmp_path / "same.py").write_text(FILE.replace('"double"', '"calc_gsm8k_reward"'))
    with pytest.raises(UserError, match=r"\['calc_gsm8k_reward'\], collide with"):
        load_all_tools(files[0], str(tmp_path / "same.py"))
    (tmp_path / "servers.json").write_text('{"mcpServers": {"a": {"command": "true"}}}')
    (tmp_path / "mcp.yaml").write_text("tools: [{config: {type: mcp}, mcp: {mcp_servers_config_path: servers.json}}]")
    with pytest.raises(UserError, match="names MCP servers, which a run starts"):
        initialize_tools_from_config(tmp_path / "mcp.yaml")
