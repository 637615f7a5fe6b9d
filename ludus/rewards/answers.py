"""Verifies mathematical answers with math-verify, in processes that are killed if an expression takes too long.

Knows: answers, solutions, worker processes.  Knows not: agents, episodes, groups.
Invariant: every answer gets a number; one that cannot be parsed, or takes too long to compare, counts as wrong.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from fractions import Fraction
from functools import cache
from importlib.util import find_spec
from typing import Any

from ludus.errors import UserError
from ludus.machine import Machine
from ludus.processes.blocking import run_blocking
from ludus.processes.calls import RemoteFunction, WorkerCrashedError, WorkerTimeoutError
from ludus.processes.gather import gather
from ludus.processes.pool import WorkerPool

logger = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""Time limit for one answer: sympy takes milliseconds, or never returns."""
_MEMORY_BYTES = 4 << 30
"""Address space of a process: a huge power fails at this limit before it exhausts the machine's memory."""

_DECORATION = {ord(sign): None for sign in ", \n\t$%#"}
_SPELLED = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d{1,3})?(?:/\d+)?", re.IGNORECASE)
"""The exponent is limited to three digits, because a model may write any, and the number is expanded."""


class MathVerifier(AbstractContextManager["MathVerifier"]):
    """Compares answers with solutions. Use as a context manager, or call `close`; safe on any thread and event loop."""

    def __init__(self, max_workers: int | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        """max_workers: number of processes. None: one per core. Raises UserError if math-verify is not installed."""
        if find_spec("math_verify") is None:
            raise UserError("mathematical answers are compared by math-verify: pip install 'ludus[math]'")
        self._pool = WorkerPool(max_workers or Machine.look(seconds=0).workers, name="math-verify")
        self._check = RemoteFunction.made_by(load_check)
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"MathVerifier({self._pool!r}, timeout_s={self._timeout_s})"

    def __exit__(self, *_: object) -> None:
        self.close()

    async def verify(self, answer: str, solutions: Sequence[str]) -> float:
        """1.0 if the answer equals one of the solutions, else 0.0."""
        try:
            return float(await self._pool.call(self._check, (answer, tuple(solutions)), timeout_s=self._timeout_s))
        except (WorkerTimeoutError, WorkerCrashedError) as error:
            logger.warning("answer.not_compared error=%s answer=%.200r", str(error)[:200], answer)
            return 0.0

    def close(self) -> None:
        self._pool.close()


def load_check() -> Callable[[str, Sequence[str]], bool]:
    """A function that tells whether an answer equals one of its solutions. Runs in a worker, and limits its memory."""
    from math_verify import parse, verify

    _limit_memory()
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own timeouts are off

    def is_right(answer: str, solutions: Sequence[str]) -> bool:
        try:
            given = parse(answer, parsing_timeout=None)
            return bool(given) and any(
                verify(parse(_boxed(solution), parsing_timeout=None), given, timeout_seconds=None)
                for solution in solutions
            )
        except MemoryError:
            return False

    return is_right


def math_verify_call(
    id2info: Mapping[str, Any] | Sequence[str],
    generateds: Sequence[str],
    query_ids: Sequence[str] | None = None,
    max_workers: int | None = None,
    timeout: float = TIMEOUT_S,
) -> list[float]:
    """1.0 or 0.0 for each answer. Blocks: in async code use `asyncio.to_thread(math_verify_call, …)`.

    Either `(id2info, answers, query_ids)`, where `id2info[query_id]["solutions"]` holds the right answers, or
    `(answers, solutions)` with one solution or a list of solutions for each answer.
    max_workers: answers compared at once. None: as many as there are cores.
    """
    if isinstance(id2info, Mapping):
        if query_ids is None or len(query_ids) != len(generateds):
            raise UserError(f"math_verify_call needs a query id for each of its {len(generateds)} answers")
        answers = list(generateds)
        wanted = [solutions_of(id2info, query_id) for query_id in query_ids]
    else:
        answers = list(id2info)
        wanted = [[item] if isinstance(item, str) else list(item) for item in generateds]
        if len(wanted) != len(answers):
            raise UserError(f"math_verify_call got {len(answers)} answers and solutions for {len(wanted)}")
    verifier = _shared(timeout)
    pairs = zip(answers, wanted, strict=True)
    return run_blocking(
        gather(lambda pair: verifier.verify(*pair), pairs, at_once=max_workers or Machine.look(seconds=0).workers)
    )


async def math_verify_all(answers: Sequence[str], solutions: Sequence[str]) -> list[float]:
    """1.0 or 0.0 for each answer to one problem."""
    verifier = _shared(TIMEOUT_S)
    return await gather(lambda answer: verifier.verify(answer, solutions), answers)


def solutions_of(id2info: Mapping[str, Any], query_id: str) -> list[str]:
    """The solutions of a query; the part of its id after '@' marks a copy and is ignored. Raises UserError if none."""
    info = id2info.get(str(query_id).partition("@")[0])
    if info is None:
        raise UserError(
            f"the data set has no query {query_id!r}; its {len(id2info)} ids begin with {list(id2info)[:3]}"
        )
    solutions = info.get("solutions")
    if not isinstance(solutions, Sequence) or not solutions:
        raise UserError(
            f"query {query_id!r} has no solutions: the column must be a list of texts, got {solutions!r:.80}"
        )
    return [solutions] if isinstance(solutions, str) else list(solutions)


def as_number(text: str) -> Fraction | None:
    """The number in a text, ignoring thousands separators, currency and percent signs. None: it is not a number."""
    bare = text.translate(_DECORATION).strip().rstrip(".").replace("−", "-")
    try:
        return Fraction(bare) if _SPELLED.fullmatch(bare) else None
    except (ValueError, ZeroDivisionError):
        return None


def last_boxed(text: str, opening: str = "\\boxed{") -> str | None:
    r"""What stands in the last complete `\boxed{…}`. None: there is none.

    opening: what it begins with.
    """
    at = len(text)
    while (at := text.rfind(opening, 0, at)) >= 0:
        depth, begin = 1, at + len(opening)
        for end in range(begin, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[begin:end]
    return None


@cache
def _shared(timeout_s: float) -> MathVerifier:
    """The verifier shared by all calls of the functions above, because its processes are slow to start."""
    return MathVerifier(timeout_s=timeout_s)


def _boxed(solution: str) -> str:
    """The solution in a box, for math-verify to find. It may be bare, or follow '####' after a derivation."""
    if "\\boxed" in solution or "$" in solution:
        return solution
    return "\\boxed{" + solution.rpartition("####")[2].strip() + "}"


def _limit_memory() -> None:
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    bound = _MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MEMORY_BYTES)
    with suppress(ValueError, OSError):  # macOS refuses any: there the time limit alone ends a huge power
        resource.setrlimit(resource.RLIMIT_AS, (bound, hard))
