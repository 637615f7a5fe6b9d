"""The program that runs in an agent's own Python: sets the agent up once, then plays rows one after the other.

Knows: only the standard library, of any Python from 3.9 on.  Knows not: Ludus.
Each input line is a row as JSON, each output line how its episode ended; what the agent prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, Awaitable, Callable, TextIO  # noqa: UP035  the standard library of 3.9


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # before the agent is imported, which may print
    sys.path[0] = str(Path.cwd())  # and not the folder of this file, whose names are not the agent's
    reference, kwargs = sys.argv[1], json.loads(sys.argv[2])
    try:
        play = made(found(reference), kwargs)
        say(out, {"ready": True})
    except BaseException as error:  # whatever it is, the other side is told
        say(out, {"error": trace(error)})
        return
    for line in sys.stdin:
        try:
            say(out, {"value": played(play, json.loads(line))})
        except BaseException as error:  # the boundary of the agent's code
            say(out, {"error": trace(error), "codes": codes(error)})


def say(out: TextIO, value: dict[str, Any]) -> None:
    out.write(json.dumps(value, default=float) + "\n")  # numbers of numpy are numbers
    out.flush()


def found(reference: str) -> Any:
    """The object of 'pkg.mod:Name', 'pkg.mod.Name' or 'path/to/file.py:Name'."""
    where, sign, name = reference.rpartition(":")
    if not sign:
        where, _, name = reference.rpartition(".")
    if where.endswith(".py"):
        file = Path(where).expanduser().resolve()
        sys.path.insert(0, str(file.parent))
        where = file.stem
    value: Any = importlib.import_module(where)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def made(agent: Any, kwargs: dict[str, Any]) -> Callable[..., Any]:
    """The function that plays a row: `agent` itself, or the `run` of an object; a class is instantiated first."""
    instance: Any = agent(**kwargs) if inspect.isclass(agent) else agent
    run: Callable[..., Any] = instance.run if hasattr(instance, "run") else instance
    if inspect.isclass(agent) or not kwargs:
        return run
    return lambda data, **given: run(data, **accepted(run, given), **kwargs)


def played(play: Callable[..., Any], asked: dict[str, Any]) -> Any:
    os.environ.update(asked["env"])
    given = accepted(play, {name: asked[name] for name in ("base_url", "api_key")})
    value = play(asked["data"], **given)
    if inspect.isawaitable(value):
        value = asyncio.run(awaited(value))
    return value if value is None or isinstance(value, dict) else float(value)


async def awaited(value: Awaitable[Any]) -> Any:
    return await value


def accepted(function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return given
    return {name: value for name, value in given.items() if name in parameters}


def trace(error: BaseException) -> str:
    """The traceback, without our own frames above the agent's."""
    ours, frames = (__file__, str(Path(asyncio.__file__).parent)), error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(ours):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def codes(error: BaseException | None) -> str:
    """The codes and messages of the error and of its causes."""
    seen: list[str] = []
    while error is not None and len(seen) < 16:  # two each; causes may go round in a circle
        seen += [str(getattr(error, "code", "") or ""), str(error)]
        error = error.__cause__ or error.__context__
    return " ".join(seen)


if __name__ == "__main__":
    main()
