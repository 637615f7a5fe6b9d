"""Programs against their tests, in the sandbox."""

from __future__ import annotations

import asyncio
import json

import pytest

from ludus.errors import UserError
from ludus.rewards.programs import ProgramTests, code_verify_call, extract_code, verify_program

DOUBLE = "n = int(input())\nprint(n * 2)\n"
READS = json.dumps({"inputs": ["2\n", "5\n"], "outputs": ["4\n", "10"]})
CALLS = json.dumps({"inputs": ["2\n3", "[1]\n[2]"], "outputs": ["5", "[1, 2]"], "fn_name": "add"})


@pytest.mark.parametrize(
    ("code", "tests", "score"),
    [
        (DOUBLE, READS, 1.0),
        ("print(4)", READS, 0.0),
        ("def add(a, b):\n    print('adding')\n    return a + b", CALLS, 1.0),
        ("class Solution:\n    def add(self, a, b):\n        return a + b", CALLS, 1.0),
        ("def add(a, b):\n    return a - b", CALLS, 0.0),
        ("raise SystemExit(0)", CALLS, 0.0),
        (None, READS, 0.0),
    ],
)
@pytest.mark.usefixtures("sandbox")
def test_a_program_is_right_if_it_passes_every_test(code, tests, score):
    """It reads and prints, or a function of it is called."""
    assert asyncio.run(verify_program(code, ProgramTests.of(tests))) == score


@pytest.mark.usefixtures("sandbox")
def test_a_program_that_hangs_is_wrong():
    """The sandbox kills it."""
    assert asyncio.run(verify_program("while True: pass", ProgramTests.of(READS), timeout_s=0.5)) == 0.0


@pytest.mark.usefixtures("sandbox")
def test_the_call_of_the_originals():
    """By query, several at once, blocking."""
    info = {"q": {"input_output": READS}}
    assert code_verify_call(info, [DOUBLE, None], ["q", "q@idx:1"], max_workers=2) == [1.0, 0.0]
    with pytest.raises(UserError, match="no tests for the query 'z'"):
        code_verify_call(info, [DOUBLE], ["z"])
    with pytest.raises(UserError, match="as many inputs as outputs"):
        ProgramTests.of({"inputs": ["1"], "outputs": []})


def test_the_last_block_that_is_long_enough():
    """Short quotations are no solutions."""
    answer = f"First\n```python\nprint('an early attempt')\n```\nbetter\n```python\n{DOUBLE}```\nso ```\nx\n```"
    assert extract_code(answer) == DOUBLE
    assert extract_code("no code") is None
