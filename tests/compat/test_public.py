"""Every public name of an original stands in its table: here, here under conditions, not needed, or refused.

`python -m tests.compat.test_public` writes the tables of docs/coming-from-*.md anew.
"""

from __future__ import annotations

import importlib
import logging
from collections import defaultdict
from pathlib import Path

import pytest

from ludus.compat.names import HERE, Table, page
from tests.compat.public import FOLDER, public_names, read
from tests.docs.pages import DOCS

FAMILIES = sorted(file.stem for file in FOLDER.glob("*.txt"))
BEGIN, END = "<!-- {}/names.toml: python -m tests.compat.test_public -->", "<!-- end -->"


def page_of(family: str) -> str:
    """The family's tables, as its page shows them."""
    table = Table.of(family)
    lines = ["| module | names that are here |", "|---|---|"]
    for path in sorted(table.modules):
        names = ((name, f"{path}.{name}".lstrip(".") in table.conditions) for name in sorted(table.names(path)))
        shown = " ".join(f"`{name}`{'*' * is_conditional}" for name, is_conditional in names)
        lines.append(f"| `{f'{family}.{path}'.rstrip('.')}` | {shown} |")
    for title, reasons in (
        ("*: under a condition", table.conditions),
        ("can be called, and does nothing", table.not_needed),
        ("is not here", table.refused),
        ("argument or member of what is here, not needed", table.unneeded_members),
        ("argument or member of what is here, refused", table.refused_members),
    ):
        if not reasons:
            continue
        by_reason = defaultdict(list)
        for name, why in reasons.items():
            by_reason[why].append(f"`{name}`")
        lines += ["", f"| {title} | |", "|---|---|"]
        lines += [f"| {' '.join(names)} | {why} |" for why, names in by_reason.items()]
    return "\n".join(lines)


def docs_of(family: str) -> Path:
    return DOCS.parent / page(family)


def renewed(family: str) -> str:
    """The family's page with its tables as they are to be."""
    begin = BEGIN.format(family)
    before, found, rest = docs_of(family).read_text().partition(f"{begin}\n")
    assert found, f"{docs_of(family).name} has no line {begin!r}, behind which the tables stand"
    return f"{before}{begin}\n{page_of(family)}\n{END}{rest.partition(END)[2]}"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_public_name_is_accounted_for(family: str) -> None:
    """None is merely missing."""
    table = Table.of(family)
    unsaid = []
    for path, names in read(family).items():
        unsaid += [] if table.has_module(path) or table.refusal(path) else [path]
        for name in set(names) - table.names(path).keys():
            whole = f"{path}.{name}".lstrip(".")
            is_said = table.has_module(whole) or whole in table.not_needed or table.refusal(whole)
            unsaid += [] if is_said else [whole]
    assert not sorted(unsaid)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_name_has_one_fate(family: str) -> None:
    """What is refused or not needed is not here, what has a condition is."""
    table = Table.of(family)
    here = table.all_names
    assert not here & {*table.refused, *table.not_needed}
    assert not table.refused.keys() & table.not_needed.keys()
    assert table.conditions.keys() <= here


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_refused_says_why(family: str) -> None:
    """An import of it names the reason and the page."""
    for name, why in Table.of(family).refused.items():
        module, _, last = f"{HERE}.{family}.{name}".rpartition(".")
        with pytest.raises(ImportError) as raised:
            exec(f"from {module} import {last}", {})
        assert why in str(raised.value) and page(family) in str(raised.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_not_needed_says_so_once(family: str, caplog: pytest.LogCaptureFixture) -> None:
    """It can be imported, called, and be a decorator."""
    for name, why in Table.of(family).not_needed.items():
        module, _, last = f"{HERE}.{family}.{name}".rpartition(".")
        unneeded = getattr(importlib.import_module(module), last)
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            unneeded(1, x=2)
            assert unneeded(page_of) is page_of
        assert [record.message for record in caplog.records] == [f"{family}.{name} does nothing: {why}"]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_has_the_tables(family: str) -> None:
    """They are written from names.toml."""
    written = docs_of(family).read_text() == renewed(family)
    assert written, f"python -m tests.compat.test_public writes {docs_of(family).name} anew"


def test_what_counts_as_public(tmp_path: Path) -> None:
    """Definitions of modules, imports of packages; nothing with an underscore, no tests."""
    package = tmp_path / "theirs"
    (package / "tests").mkdir(parents=True)
    (package / "_inner").mkdir()
    (package / "__init__.py").write_text("from .a import f as g, _h\nfrom os import path\n__all__ = []\n")
    (package / "a.py").write_text("import os\nfrom b import c\nT: int = 1\nclass C: ...\nasync def f(): ...\n_p = 1\n")
    for hidden in ("tests", "_inner"):
        (package / hidden / "x.py").write_text("y = 1\n")
    assert public_names(package) == {"": ["g"], "a": ["C", "T", "f"]}


if __name__ == "__main__":
    for each in FAMILIES:
        docs_of(each).write_text(renewed(each))
