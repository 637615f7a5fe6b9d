"""What editors and type checkers read of the tables of names; `python -m tests.compat.test_stubs` writes it anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import ludus.compat
from ludus.compat.names import FAMILIES, Table

HERE = Path(ludus.compat.__path__[0])
# Modules that are not packages, right below a family: a file beside `__init__` is enough for those. Folders for the
# others would stand before the tables.
ALONE = {"art": ("langgraph", "local", "mcp", "rewards")}


def stub(names: Mapping[str, str], *, is_package: bool) -> str:
    lines = ["# Written from names.toml: python -m tests.compat.test_stubs"]
    if is_package:
        lines += ["from typing import Any", ""]
    for name, target in sorted(names.items(), key=lambda item: (*item[1].split(":"), item[0])):
        module, _, attribute = target.partition(":")
        # Ruff knows re-exports under the same name alone.
        lines.append(f"from {module} import {attribute} as {name}" + "  # noqa: F401" * (name != attribute))
    if is_package:  # the modules below, which have no file
        lines += ["", "def __getattr__(name: str) -> Any: ..."]
    return "\n".join(lines) + "\n"


def stubs() -> Iterator[tuple[Path, str]]:
    for family in FAMILIES:
        table = Table.of(family)
        yield HERE / family / "__init__.pyi", stub(table.names(""), is_package=True)
        for path in ALONE.get(family, ()):
            yield HERE / family / f"{path}.pyi", stub(table.names(path), is_package=False)


@pytest.mark.parametrize(("path", "text"), list(stubs()), ids=lambda value: getattr(value, "name", ""))
def test_the_stubs_say_what_the_tables_say(path: Path, text: str) -> None:
    """An editor completes the names that are there."""
    assert path.read_text() == text


def test_no_other_stub_is_there() -> None:
    """Every stub comes from a table."""
    assert set(HERE.rglob("*.pyi")) == {path for path, _ in stubs()}


if __name__ == "__main__":
    for path, text in stubs():
        path.write_text(text)
