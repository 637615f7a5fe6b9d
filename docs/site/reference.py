"""Writes the page of what `import ludus` offers: each name of `ludus.__all__`, to be filled in from its docstrings.

Reads `ludus/__init__.py` as text: nothing of Ludus needs to be installed where the site is built.
"""

import ast
import sys
from pathlib import Path

TREE = ast.parse((Path(__file__).parents[2] / "ludus" / "__init__.py").read_text())


def value(name: str) -> object:
    """What the module's variable of this name is, where it is written out."""
    [found] = (
        each.value
        for each in TREE.body
        if isinstance(each, ast.Assign) and [ast.unparse(target) for target in each.targets] == [name]
    )
    return ast.literal_eval(found)


def main() -> None:
    names = {name: module for module, many in value("_NAMES").items() for name in many.split()}
    page = ["# Reference\n\nWhat `import ludus` offers, from its docstrings. What it is for: [API](api.md)."]
    for name in sorted(names, key=str.casefold):
        page.append(f"::: {names[name]}.{name}\n    options:\n      heading: ludus.{name}")
    Path(sys.argv[1]).write_text("\n\n".join(page) + "\n")


main()
