"""Writes down what vLLM's own wheel says of its interface, which the stand-in and the command line are held to.

    make server-fields      or, with a wheel: python -m tests.engines.vllm.vllm_fields vllm-*.whl

Nothing of the wheel is imported or run: it is read as text.
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.engines.wheels import fields, strings

RECORD = Path(__file__).with_suffix(".json")
CLASSES = {
    "vllm/entrypoints/scale_out/token_in_token_out/protocol.py": ("GenerateRequest",),
    "vllm/sampling_params.py": ("SamplingParams", "StructuredOutputsParams"),
    "vllm/entrypoints/generate/base/protocol.py": ("StreamOptions",),
    "vllm/entrypoints/serve/lora/protocol.py": ("LoadLoRAAdapterRequest",),
    "vllm/entrypoints/serve/tokenize/protocol.py": ("TokenizeCompletionRequest",),
    "vllm/distributed/weight_transfer/nccl_common.py": ("NCCLWeightTransferInitInfo",),
    "vllm/distributed/weight_transfer/nccl_engine.py": ("NCCLWeightTransferUpdateInfo",),
}
OPTIONS = {
    "vllm/engine/arg_utils.py": ("EngineArgs", "AsyncEngineArgs"),
    "vllm/entrypoints/launchers/cli_args.py": ("BaseFrontendArgs", "FrontendArgs"),
}
ROUTERS = (
    "vllm/entrypoints/rl/online/api_router.py",
    "vllm/entrypoints/serve/dev/sleep/api_router.py",
    "vllm/entrypoints/serve/dev/cache/api_router.py",
    "vllm/entrypoints/serve/lora/api_router.py",
    "vllm/entrypoints/serve/tokenize/api_router.py",
    "vllm/entrypoints/scale_out/token_in_token_out/api_router.py",
)


def main(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        trees = {path: ast.parse(archive.read(path)) for path in (*CLASSES, *OPTIONS, *ROUTERS)}
    options = {name for path, names in OPTIONS.items() for each in names for name, _ in fields(trees[path], each)}
    record = {
        "version": wheel.name.split("-")[1],
        "routes": dict(sorted(found for path in ROUTERS for found in _routes(trees[path]))),
        "classes": {name: dict(fields(trees[path], name)) for path, names in CLASSES.items() for name in names},
        "options": sorted(options),
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


def _routes(tree: ast.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path, and what it reads: the query's names, the body's names, the class of a whole body."""
    for node in ast.walk(tree):
        for decorator in node.decorator_list if isinstance(node, ast.AsyncFunctionDef) else ():
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) in ("router.post", "router.get"):
                (path,) = strings(decorator.args)
                yield path, _read_by(node)


def _read_by(function: ast.AsyncFunctionDef) -> dict[str, Any]:
    arguments = function.args.args
    defaults = [None] * (len(arguments) - len(function.args.defaults)) + list(function.args.defaults)
    query, body, whole = [], [], None
    for argument, default in zip(arguments, defaults, strict=True):
        said = f"{ast.unparse(argument.annotation or ast.Constant(''))} {ast.unparse(default or ast.Constant(''))}"
        if "Query(" in said:
            query.append(argument.arg)
        elif "Body(" in said:
            body.append(argument.arg)
        elif argument.arg == "request":
            whole = said.split()[0]
    asked = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    lists = [each for each in asked if ast.unparse(each.func) == "raw_request.query_params.getlist"]
    query += [name for each in lists for name in strings(each.args)]
    return {"query": query, "body": body, "class": whole}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
