"""Functions as tools: what their schema says, and what they are given."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

import pydantic
import pytest

from ludus.agents.tools.answer import ToolError
from ludus.agents.tools.function import function_tool, functions_of, tool_of
from ludus.agents.tools.schema import spec_of
from ludus.agents.tools.signature import Signature, read_docstring
from ludus.errors import UserError


class Colour(enum.Enum):
    RED = "red"


class Point(pydantic.BaseModel):
    x: int
    y: int = 0


def rich(
    names: list[str],
    point: Point,
    colour: Colour = Colour.RED,
    how: Literal["fast", "slow"] = "fast",
    limit: Annotated[int, pydantic.Field(ge=1)] | None = None,
    json: bool = False,
) -> str:
    """Finds things.

    It looks everywhere.

    Args:
        names: What to look for,
            one by one.
        point (Point): Where to begin.
        limit: Most results: all if none.

    Returns:
        The things.
    """
    return f"{names} {point} {colour} {how} {limit} {json}"


def test_a_signature_is_a_whole_json_schema() -> None:
    """Items, enums, nested types, bounds and defaults all reach the model, and titles do not."""
    spec = spec_of(Signature(rich).schema("find"))
    assert (spec.name, spec.description) == ("find", "Finds things.\n\nIt looks everywhere.")
    properties = spec.parameters["properties"]
    assert properties["names"] == {
        "type": "array",
        "items": {"type": "string"},
        "description": "What to look for, one by one.",
    }
    assert properties["point"] == {"$ref": "#/$defs/Point", "description": "Where to begin."}
    assert spec.parameters["$defs"]["Point"]["properties"] == {
        "x": {"type": "integer"},
        "y": {"type": "integer", "default": 0},
    }
    assert properties["how"] == {"type": "string", "enum": ["fast", "slow"], "default": "fast"}
    assert properties["limit"]["anyOf"] == [{"type": "integer", "minimum": 1}, {"type": "null"}]
    assert properties["limit"]["description"] == "Most results: all if none."
    assert properties["json"] == {"type": "boolean", "default": False}
    assert spec.parameters["required"] == ["names", "point"]
    assert list(spec.parameters)[:2] == ["type", "properties"] and "additionalProperties" not in spec.parameters
    assert "title" not in str(spec.parameters)


def test_a_union_of_plain_types_is_a_list_of_them() -> None:
    """As transformers writes it, so that a template shows the same prompt."""

    def scale(by: int | float, name: str | None = None) -> None: ...

    properties = spec_of(Signature(scale).schema("scale")).parameters["properties"]
    assert properties == {
        "by": {"type": ["integer", "number"]},
        "name": {"type": ["string", "null"], "default": None},
    }


def test_a_function_is_given_the_types_it_names() -> None:
    """What JSON cannot say is made of what it says, and a text that is a number is a number."""
    arguments = Signature(rich).read({"names": ["a"], "point": {"x": "3"}, "limit": "2", "colour": "red"})
    assert arguments == {"names": ["a"], "point": Point(x=3), "limit": 2, "colour": Colour.RED}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"point": {"x": 1}}, "the argument 'names' is missing"),
        ({"names": "a", "point": {"x": 1}}, "the argument 'names': Input should be a valid list, got 'a'"),
        ({"names": [], "point": {"x": 1}, "colr": 1}, "there is no argument 'colr'"),
        ({"names": [], "point": {"x": "?"}}, "the argument 'point.x'"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: Any, error: str) -> None:
    """The model reads which argument is wrong, what it must be and what it wrote."""
    with pytest.raises(ToolError) as raised:
        Signature(rich).read(arguments)
    assert error in str(raised.value)


def test_extra_arguments_go_where_the_function_takes_them() -> None:
    """`**kwargs` opens the schema."""

    def open_(a: int, **more: str) -> str:
        return f"{a}{more}"

    signature = Signature(open_)
    assert signature.read({"a": 1, "b": "x"}) == {"a": 1, "b": "x"}
    assert signature.schema("open").function.parameters.model_dump().get("additionalProperties") is not False


def test_a_function_that_cannot_be_called_by_names_is_refused() -> None:
    """Where it is defined, not in the middle of a run."""
    with pytest.raises(UserError, match=r"takes \*values: 'int', but a model gives arguments by name"):

        @function_tool
        def total(*values: int) -> int:
            return sum(values)


def test_both_forms_of_docstrings_are_read() -> None:
    """Sphinx's fields say the same as Google's sections."""
    sphinx = read_docstring("Adds.\n\n:param int a: first\n    of two\n:param b: second\n:returns: the sum")
    google = read_docstring(
        "Adds.\n\nArgs:\n    a (int): first\n        of two\n    b: second\n\nReturns:\n    the sum"
    )
    assert sphinx == google
    assert google.arguments == {"a": "first of two", "b": "second"}


def test_the_decorator_leaves_the_function_as_it_is() -> None:
    """Bare, with a name, and with a schema; the file's order is the tool set's."""
    schema = {"type": "function", "function": {"name": "raw", "description": "As it comes."}}

    @function_tool
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    @function_tool("times")
    def multiply(a: int, b: int) -> int:
        return a * b

    @function_tool(schema=schema)
    def anything(**arguments: Any) -> str:
        return str(arguments)

    @function_tool(name="named")
    def other() -> None: ...

    assert (add(1, 2), multiply(2, 3)) == (3, 6)
    tools = list(functions_of({"x": 1, "a": add, "m": multiply, "again": add, "r": anything, "o": other}))
    assert [tool.name for tool in tools] == ["add", "times", "raw", "named"]
    assert tool_of(len) is None
