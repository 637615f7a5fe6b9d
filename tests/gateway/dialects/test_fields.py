"""What the readers of JSON fields accept, and what they say when they refuse."""

import pytest

from ludus.errors import AgentError
from ludus.gateway.dialects.fields import read_integer, read_number, refuse_unknown


def test_null_is_absent() -> None:
    """A field that is null reads as its default."""
    assert read_number({"temperature": None}, "temperature", 0.5) == 0.5
    assert read_integer({}, "n", 3) == 3


@pytest.mark.parametrize("value", [True, "1", [1], {"a": 1}])
def test_number_refuses_other_kinds(value: object) -> None:
    """A boolean or a string is not a number."""
    with pytest.raises(AgentError) as caught:
        read_number({"top_p": value}, "top_p", 1.0)
    assert (caught.value.code, caught.value.param) == ("invalid_type", "top_p")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.1, 10**400])
def test_number_refuses_values_outside_its_range(value: float) -> None:
    """A number outside the range, or not finite, is named with what is allowed."""
    with pytest.raises(AgentError) as caught:
        read_number({"top_p": value}, "top_p", 1.0, low=0.0, high=1.0)
    assert (caught.value.code, "0 to 1" in caught.value.message) == ("invalid_value", True)


def test_unknown_field_names_the_nearest() -> None:
    """An unknown field is refused with the field that was probably meant, and its whole path."""
    with pytest.raises(AgentError) as caught:
        refuse_unknown({"contnet": "x"}, ("content", "role"), at="messages[2]")
    assert caught.value.param == "messages[2].contnet"
    assert "'messages[2].content'" in caught.value.message
