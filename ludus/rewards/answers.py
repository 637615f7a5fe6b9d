"""Whether a mathematical answer is right: math-verify, in processes that are killed when an expression never ends.

Knows: answers, solutions, worker processes.  Knows not: agents, episodes, groups.
Invariant: every answer gets a number; one that cannot be read, or takes too long to compare, is wrong.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
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
"""For one answer: sympy takes milliseconds or does not come back."""
_MEMORY_BYTES = 4 << 30
"""Address space of a process: a power of powers fails in it before it takes the machine's memory."""

_DECORATION = {ord(sign): None for sign in ", \n\t$%#"}
_SPELLED = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d{1,3})?(?:/\d+)?", re.IGNORECASE)
"""A model may write any exponent, and its number would be written out."""


class MathVerifier(AbstractContextManager["MathVerifier"]):
    """Compares answers with solutions. Use as a context manager, or call `close`; for any thread and event loop."""

    def __init__(self, max_workers: int | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        """max_workers: processes; None: one for each core. Raises UserError if math-verify is not installed."""
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
    """Whether an answer equals one of its solutions; for a process that may be killed, whose memory is bounded."""
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
    """1.0 or 0.0 for each answer; it blocks, so await `asyncio.to_thread(math_verify_call, …)`.

    Either `(id2info, answers, query_ids)`, where `id2info[query_id]["solutions"]` holds what is right, or
    `(answers, solutions)` with a solution, or a list of them, for each answer.
    max_workers: answers compared at once; None: as many as there are cores.
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
    """What is right for a query; what follows '@' in its id is a copy's mark. Raises UserError if there is none."""
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
    """The number that a text spells, signs of thousands, money and percent left out. None: it spells none."""
    bare = text.translate(_DECORATION).strip().rstrip(".").replace("−", "-")
    try:
        return Fraction(bare) if _SPELLED.fullmatch(bare) else None
    except (ValueError, ZeroDivisionError):
        return None


def last_boxed(text: str) -> str | None:
    r"""What stands in the last complete `\boxed{…}`. None: there is none."""
    at = len(text)
    while (at := text.rfind("\\boxed{", 0, at)) >= 0:
        depth, begin = 1, at + len("\\boxed{")
        for end in range(begin, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[begin:end]
    return None


@cache
def _shared(timeout_s: float) -> MathVerifier:
    """One for all callers of the functions above: what each would start for itself is slow to start."""
    return MathVerifier(timeout_s=timeout_s)


def _boxed(solution: str) -> str:
    """The solution where math-verify surely finds it: it may be bare, or end a worked one after '####'."""
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
    resource.setrlimit(resource.RLIMIT_AS, (bound, hard))
