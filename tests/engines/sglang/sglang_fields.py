"""Writes down what SGLang's own wheel says of its interface, which the stand-in and its tests are held to.

    make server-fields      or, with a wheel: python -m tests.engines.sglang.sglang_fields sglang-*.whl

Nothing of the wheel is imported or run: it is read as text.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.engines.wheels import fields, strings

_OPTION = re.compile(r"--[a-z][a-z0-9-]*")
RECORD = Path(__file__).with_suffix(".json")
CLASSES = {
    "sglang/srt/managers/io_struct.py": (
        *("GenerateReqInput", "PauseGenerationReqInput", "ContinueGenerationReqInput"),
        *("UpdateWeightFromDiskReqInput", "AbortReq"),
    ),
    "sglang/srt/sampling/sampling_params.py": ("SamplingParams",),
    "sglang/srt/entrypoints/openai/protocol.py": ("TokenizeRequest", "TokenizeResponse", "ModelCard"),
}
OPTIONS = "sglang/srt/arg_groups/fields/"
SERVER, REPLIES = "sglang/srt/entrypoints/http_server.py", "sglang/srt/managers/tokenizer_manager.py"


def main(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        trees = {path: ast.parse(archive.read(path)) for path in (*CLASSES, SERVER, REPLIES)}
        groups = [ast.parse(archive.read(path)) for path in archive.namelist() if path.startswith(OPTIONS)]
    classes = {name: dict(fields(trees[path], name)) for path, names in CLASSES.items() for name in names}
    record = {
        "version": wheel.name.split("-")[1],
        "routes": sorted(set(_routes(trees[SERVER]))),
        "classes": classes,
        "meta_info": sorted(set(_keys(trees[REPLIES]))),
        "options": sorted({option for tree in groups for option in _options(tree)}),
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


def _routes(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        for decorator in node.decorator_list if isinstance(node, ast.AsyncFunctionDef) else ():
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).startswith("app."):
                path = decorator.args[0]
                if isinstance(path, ast.Constant):
                    yield str(path.value)


def _options(tree: ast.Module) -> Iterator[str]:
    """Of the server's command line: fields by their own names, and other names of theirs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield f"--{node.target.id.replace('_', '-')}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _OPTION.fullmatch(node.value):
            yield node.value


def _keys(tree: ast.Module) -> Iterator[str]:
    """Everything that is put into a `meta_info`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Subscript) and ast.unparse(target.value) == "meta_info":
                yield from strings([target.slice])
            if ast.unparse(target) == "meta_info" and isinstance(value, ast.Dict):
                yield from strings(value.keys)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "meta_info.update":
            for told in node.args:
                yield from strings(told.keys) if isinstance(told, ast.Dict) else ()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
