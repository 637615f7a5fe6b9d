"""Verifies programs by running their tests, each in a sandbox.

Knows: programs, inputs, expected outputs, the sandbox.  Knows not: agents, episodes, groups.
Invariant: every program gets a number; one that fails, hangs or prints anything else counts as wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ludus.errors import UserError
from ludus.processes.blocking import run_blocking
from ludus.processes.gather import gather
from ludus.processes.sandbox import SandboxLimits, run_python
from ludus.processes.walls import Sandboxing

TIMEOUT_S = 8.0
"""Time limit for one test of one program."""
_FENCED = re.compile(r"```(?:[\w+-]*)\n(.*?)```", re.DOTALL)
_MIN_CODE_CHARS = 20
"""A shorter fenced block is taken for a quotation, not a solution."""
# What calls a function instead of running a script: arguments come a line each, as JSON; so does the result.
_CALL = """
import json as _json, sys as _sys
_arguments = [_json.loads(_line) for _line in _sys.stdin.read().splitlines() if _line.strip()]
_holder = globals().get("Solution")
_function = getattr(_holder(), {name!r}) if _holder is not None else globals()[{name!r}]
print("\\n" + _json.dumps(_function(*_arguments)))
"""


@dataclass(frozen=True, slots=True)
class ProgramTests:
    """Inputs and the expected outputs."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    fn_name: str | None = None
    """The function, or method of `Solution`, to call. None: the program reads stdin and prints."""

    @classmethod
    def of(cls, input_output: str | Mapping[str, Any]) -> ProgramTests:
        """The tests of a column `input_output`. Raises UserError if it holds none."""
        body = json.loads(input_output) if isinstance(input_output, str) else input_output
        inputs, outputs = body.get("inputs"), body.get("outputs")
        if not inputs or not outputs or len(inputs) != len(outputs):
            raise UserError(f"input_output must hold as many inputs as outputs, got {body!s:.100}")
        return cls(tuple(map(_text, inputs)), tuple(map(_text, outputs)), body.get("fn_name"))


def extract_code(text: str, min_length: int = _MIN_CODE_CHARS) -> str | None:
    """The last fenced block of an answer with at least `min_length` characters. None: there is none."""
    blocks = [block for block in _FENCED.findall(text) if len(block) >= min_length]
    return blocks[-1] if blocks else None


async def verify_program(
    code: str | None, tests: ProgramTests, *, timeout_s: float = TIMEOUT_S, sandbox: Sandboxing = "required"
) -> float:
    """1.0 if the program passes every test, else 0.0; stops at the first failure. code: None counts as wrong.

    sandbox: none: code runs unprotected. Raises UserError if it is required and this system cannot isolate code.
    """
    if code is None:
        return 0.0
    script = code if tests.fn_name is None else code + _CALL.format(name=tests.fn_name)
    for given, expected in zip(tests.inputs, tests.outputs, strict=True):
        run = await run_python(script, stdin=given, limits=SandboxLimits(timeout_s=timeout_s), walled=sandbox)
        if run.ending != "ok" or not _agree(run.stdout, expected, is_json=tests.fn_name is not None):
            return 0.0
    return 1.0


def code_verify_call(
    id2info: Mapping[str, Any],
    generateds: Sequence[str | None],
    query_ids: Sequence[str],
    max_workers: int = 1,
    timeout: float = TIMEOUT_S,
    *,
    sandbox: Sandboxing = "required",
) -> list[float]:
    """1.0 or 0.0 for each program. Blocks: in async code use `asyncio.to_thread(code_verify_call, …)`.

    `id2info[query_id]["input_output"]` holds the tests as JSON: inputs, outputs, and fn_name if a function is to be
    called.  max_workers: programs tested at once.  sandbox: as for `verify_program`.
    """
    if len(query_ids) != len(generateds):
        raise UserError(f"code_verify_call needs a query id for each of its {len(generateds)} programs")
    tests = [tests_of(id2info, query_id) for query_id in query_ids]

    pairs = zip(generateds, tests, strict=True)
    judging = (partial(verify_program, *pair, timeout_s=timeout, sandbox=sandbox) for pair in pairs)
    return run_blocking(gather(lambda judge: judge(), judging, at_once=max_workers))


def tests_of(id2info: Mapping[str, Any], query_id: str) -> ProgramTests:
    """The tests of a query; the part of its id after '@' marks a copy and is ignored. Raises UserError if none."""
    info = id2info.get(str(query_id).partition("@")[0])
    if info is None or "input_output" not in info:
        raise UserError(f"the data set has no tests for the query {query_id!r}: it needs a column input_output")
    return ProgramTests.of(info["input_output"])


def _agree(printed: str, expected: str, *, is_json: bool) -> bool:
    if not is_json:
        return _lines(printed) == _lines(expected)
    try:  # the program may have printed before; its result is the last line
        return bool(json.loads(_lines(printed)[-1]) == json.loads(expected))
    except (IndexError, ValueError, RecursionError):
        return False


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _text(value: Any) -> str:
    """An input or output as text; in some data sets it is a list of lines, or another value."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return json.dumps(value)
