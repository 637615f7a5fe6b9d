"""The lists of fields in docs/gateway-protocols.md are those that the dialects read by."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ludus.gateway.dialects.chat import fields as chat
from ludus.gateway.dialects.completions import fields as completions
from ludus.gateway.dialects.fields import FieldTable
from ludus.gateway.dialects.messages import fields as messages
from ludus.gateway.dialects.responses import fields as responses
from ludus.gateway.dialects.sampling import SAMPLING_FIELDS

DOCS = Path(__file__).parents[3] / "docs" / "gateway-protocols.md"
TABLES = {
    "Chat Completions": chat.REQUEST,
    "Responses": responses.REQUEST,
    "Messages": messages.REQUEST,
    "Completions": completions.REQUEST,
}


def listed(section: str, start: str) -> set[str]:
    [line] = [line for line in section.splitlines() if line.startswith(start)]
    return set(re.findall(r"`(\w+)`", line.removeprefix(start)))


@pytest.mark.parametrize("title", TABLES)
def test_the_documented_fields_are_those_of_the_code(title: str) -> None:
    """Each class of each protocol lists exactly its fields; those of sampling stand once for all."""
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", DOCS.read_text(), re.DOTALL | re.MULTILINE))
    table = TABLES[title]
    assert listed(sections[title], "| honoured |") | SAMPLING_FIELDS == table.honoured
    assert listed(sections[title], "| ignored |") == table.ignored
    assert listed(sections[title], "| refused |") == set(table.refused)
    everywhere = sections["What holds in all of them"]
    assert listed(everywhere, "- **Sampling**") == SAMPLING_FIELDS


@pytest.mark.parametrize("title", TABLES)
def test_no_field_has_two_classes(title: str) -> None:
    """A field is honoured, ignored or refused."""
    table: FieldTable = TABLES[title]
    assert len(table.known) == len(table.honoured) + len(table.ignored) + len(table.refused)
