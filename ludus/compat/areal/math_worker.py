"""math-verify by the name that users of the workflow family call it.

Knows: one answer and its solution.  Knows not: processes.
"""

from __future__ import annotations

from ludus.rewards.answers import math_verify_call


class MathVerifyWorker:
    """Compares answers with solutions, in processes that all callers share."""

    def verify(self, response: str, ground_truth: str) -> float:
        """1.0 if the response holds the solution's value, else 0.0. It blocks: call it in a reward function."""
        (score,) = math_verify_call([response], [ground_truth])
        return score


def get_math_verify_worker() -> MathVerifyWorker:
    """The one to use."""
    return MathVerifyWorker()
