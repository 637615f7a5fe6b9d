"""Files of tools in verl's form: classes with schemas, and what is wrong with a file, by name."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ludus.agents.tools.tool_set import ToolSet
from ludus.errors import ConfigError, UserError
from ludus.types import ToolCall

CLASSES = '''
from ludus.agents.tools.base import BaseTool, ToolResponse
from ludus.agents.tools.schema import OpenAIFunctionToolSchema


class Greeter(BaseTool):
    """As verl's users write it."""

    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self._greetings = {}

    async def create(self, instance_id=None, **kwargs):
        self._greetings[instance_id] = kwargs.get("create_kwargs", {}).get("greeting", "hello")
        return instance_id, ToolResponse()

    async def execute(self, instance_id, parameters, **kwargs):
        return ToolResponse(text=f"{self._greetings[instance_id]} {parameters['whom']}{self.config['mark']}"), 0.0, {}


class SelfMade(BaseTool):
    def get_openai_tool_schema(self):
        return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": {"name": "own"}})

    async def execute(self, instance_id, parameters, **kwargs):
        return "own"


class NoTool:
    pass
'''
ENTRY = """
  - class_name: {cls}
    config: {{type: native, mark: "!"}}
    tool_schema:
      type: function
      function:
        name: greet
        description: Greets.
        parameters:
          type: object
          properties:
            whom: {{type: string, description: who}}
            tags: {{type: array, items: {{type: string}}, default: []}}
          required: [whom]
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with classes of tools, which is the working directory."""
    (tmp_path / "greeting_tools.py").write_text(CLASSES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_class_with_its_schema_is_a_tool(write: Path) -> None:
    """The class gets its config, the row's arguments reach `create`, and the whole schema reaches the model."""
    path = write / "tools.yaml"
    entry = ENTRY.format(cls="greeting_tools.py:Greeter")
    path.write_text(f"tools:{entry}  - class_name: greeting_tools.SelfMade\n")

    async def main() -> tuple[str, str]:
        tool_set = ToolSet.load(path)
        await tool_set.setup()
        first, second = tool_set.specs
        assert first.parameters["properties"]["tags"] == {"type": "array", "items": {"type": "string"}, "default": []}
        assert (second.name, second.parameters) == ("own", {"type": "object", "properties": {}})
        async with tool_set.open({"greet": {"create_kwargs": {"greeting": "good day"}}}) as episode_tools:
            texts = [
                (await episode_tools.call(ToolCall("1", n, a))).text
                for n, a in (("greet", '{"whom": "you"}'), ("own", ""))
            ]
        await tool_set.close()
        return texts[0], texts[1]

    assert asyncio.run(main()) == ("good day you!", "own")


def test_the_schema_of_the_file_stands_above_that_of_the_class(write: Path) -> None:
    """As verl's tools are made: the class is asked where the file says none."""
    path = write / "tools.yaml"
    path.write_text(f"tools:{ENTRY.format(cls='greeting_tools.SelfMade')}")
    tool_set = ToolSet.load(path)
    asyncio.run(tool_set.setup())
    assert [(spec.name, spec.parameters["required"]) for spec in tool_set.specs] == [("greet", ["whom"])]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("- 1", "must hold `tools`, a list of mappings"),
        ("tools: [1]", "must hold `tools`, a list of mappings"),
        ("tools: [", "is not valid YAML"),
        ("tools: [{clas_name: x}]", "tools.0: unknown key 'clas_name'; did you mean 'class_name'"),
        ("tools: [{config: {}}]", "tools.0 needs a class_name"),
        ("tools: [{class_name: greeting_tools.Missing}]", "has no 'Missing'"),
        ("tools: [{class_name: greeting_tools.NoTool}]", "must be a subclass of BaseTool"),
        ("tools: [{class_name: greeting_tools.Greeter}]", "Greeter has no schema"),
        ("tools: [{config: {type: rest}}]", "config.type='rest' is not possible; there are 'native' and 'mcp'"),
        ("tools: [{config: {type: mcp}}]", "needs `mcp: {mcp_servers_config_path"),
        ("tools: [{class_name: greeting_tools.SelfMade, mcp: {mcp_servers_config_path: x}}]", "`mcp` cannot act"),
        (
            "tools: [{class_name: greeting_tools.Greeter, tool_schema: {type: function, function: {}}}]",
            "function.name: Field required",
        ),
        (
            "tools: [{config: {type: mcp, num_workers: 3}, mcp: {mcp_servers_config_path: x}}]",
            "config: unknown key 'num_workers'",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_named(write: Path, text: str, error: str) -> None:
    """The file, the entry, what is allowed."""
    path = write / "tools.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        ToolSet.load(path)
    assert error in str(raised.value)
    if isinstance(raised.value, ConfigError):
        assert "tools.yaml" in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """With the folder that it was looked for in."""
    with pytest.raises(UserError, match=r"cannot read the tools in .*missing.yaml"):
        ToolSet.load(tmp_path / "missing.yaml")


def test_two_tools_of_one_name_are_refused() -> None:
    """A model could not tell them apart."""

    async def echo(text: str) -> str:
        return text

    with pytest.raises(UserError, match="two tools are called 'echo'"):
        asyncio.run(ToolSet.load(tools=[echo, echo]).setup())


def test_what_is_no_tool_is_refused() -> None:
    """Only tools, functions, sources, and import strings of them."""
    with pytest.raises(UserError, match="is no tool; pass a BaseTool"):
        ToolSet.load(tools=[3])


def test_what_was_started_is_closed_where_a_later_tool_fails() -> None:
    """A setup that fails leaves nothing behind, and closing goes on over what fails to close."""
    log: list[str] = []

    class Source:
        def __init__(self, name: str, *, fails: bool = False) -> None:
            self.name, self.fails = name, fails

        async def setup(self) -> list[object]:
            if self.fails:
                raise UserError("no")
            log.append(f"setup {self.name}")
            return []

        async def close(self) -> None:
            log.append(f"close {self.name}")
            raise OSError("stuck")

    with pytest.raises(UserError, match="no"):
        asyncio.run(ToolSet.load(tools=[Source("a"), Source("b"), Source("c", fails=True)]).setup())
    assert log == ["setup a", "setup b", "close b", "close a"]
