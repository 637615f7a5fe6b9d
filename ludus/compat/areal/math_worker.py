"""math-verify under AReaL's name.

Knows: one answer and its solution.  Knows not: processes.
"""

from __future__ import annotations

from ludus.compat.members import with_members
from ludus.rewards.answers import TIMEOUT_S, math_verify_call


@with_members("areal", "reward.MathVerifyWorker")
class MathVerifyWorker:
    """Compares answers with solutions, in processes that all callers share."""

    def __init__(
        self, try_extract_without_anchor: bool = True, precision: int = 6, timeout: float | None = TIMEOUT_S
    ) -> None:
        """timeout: seconds after which a comparison is aborted and counts as wrong. None: the default."""
        del try_extract_without_anchor, precision
        self.timeout = TIMEOUT_S if timeout is None else timeout

    def verify(self, response: str, ground_truth: str) -> float:
        """1.0 if the response contains the solution's value, else 0.0. Blocks, so call it in a reward function."""
        (score,) = math_verify_call([response], [ground_truth], timeout=self.timeout)
        return score


def get_math_verify_worker() -> MathVerifyWorker:
    """A worker; all of them share the same processes."""
    return MathVerifyWorker()
