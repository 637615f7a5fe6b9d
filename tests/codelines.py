"""Code lines of the package by folder: physical lines that hold code, less blanks, comments, docstrings and imports.

A folder, or a file, directly below the package counts; the core is all but `compat`, `cluster`, `checks` and `cli`.
`python tests/codelines.py [FOLDER [BEFORE]]`; BEFORE is what this wrote earlier, and is shown beside.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

OUTSIDE = {"compat", "cluster", "checks", "cli", "__main__"}
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Lines of `source` that hold at least one token of a statement that does something."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_docstring(node):
            lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def _is_docstring(node: ast.AST) -> bool:
    """Strings below a field are docstrings too."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def by_folder(package: Path) -> Counter[str]:
    """Code lines of each folder of `package`, of the core and of all."""
    folders: Counter[str] = Counter()
    for path in sorted(package.rglob("*.py")):
        folders[path.relative_to(package).with_suffix("").parts[0]] += code_lines(path.read_text())
    core = sum(num for folder, num in folders.items() if folder not in OUTSIDE)
    return folders | Counter({"CORE": core, "ALL": folders.total()})


def main(package: str = "ludus", before: str | None = None) -> None:
    """Write a row for each folder, the smallest first, then the core and the whole."""
    folders, old = by_folder(Path(package)), Counter[str]()
    for line in Path(before).read_text().splitlines() if before else ():
        folder, num = line.split()[:2]
        old[folder] = int(num.replace(",", ""))
    for folder in sorted(folders.keys() | old.keys(), key=lambda folder: (folders[folder], old[folder])):
        sys.stdout.write(f"{folder:14}{folders[folder]:8,}" + (f"{old[folder]:10,}\n" if before else "\n"))


if __name__ == "__main__":
    main(*sys.argv[1:])
