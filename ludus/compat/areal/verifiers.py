"""Reward functions that compare an answer with the data set's: the last number, a boxed expression, a count in
brackets.

Knows: texts of answers.  Knows not: agents, models.
Each is called as `verifier(prompt, completions, prompt_ids, completion_ids, **columns)`, like all reward functions in
AReaL, and returns 1.0 or 0.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from ludus.errors import UserError
from ludus.rewards.answers import as_number, last_boxed

_NUMBER = re.compile(r"(?<![\w.])[-+−]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:\s*/\s*\d+)?")
_COUNT = re.compile(r"\[\s*(-?\d+)\s*\]")
# LaTeX commands that change only the appearance of an expression.
_LOOKS = re.compile(r"\\(?:left|right|displaystyle|,|;|!|:)|\\text\{([^}]*)\}|\\mathrm\{([^}]*)\}|[\s$]")


def gsm8k_reward_fn(
    prompt: str, completions: str, prompt_ids: Sequence[int], completion_ids: Sequence[int], answer: str, **_: Any
) -> float:
    """1.0 if the answer's final number is that of the solution: the boxed one, the one after ####, or the last."""
    wanted, found = final_number(answer), final_number(completions)
    if wanted is None:
        raise UserError(f"the column `answer` holds no number: {answer!r:.200}")
    return float(found == wanted)


def geometry3k_reward_fn(
    prompt: str, completions: str, prompt_ids: Sequence[int], completion_ids: Sequence[int], answer: str, **_: Any
) -> float:
    """1.0 if the boxed expression equals the solution, as a number or as text."""
    found = last_boxed(completions)
    return float(found is not None and _same(found, answer))


def clevr_count_70k_reward_fn(
    prompt: str, completions: str, prompt_ids: Sequence[int], completion_ids: Sequence[int], answer: str, **_: Any
) -> float:
    """1.0 if the last number in brackets, as in [3], is the solution's."""
    found, wanted = _COUNT.findall(completions), _COUNT.findall(str(answer)) or [str(answer).strip()]
    return float(bool(found) and int(found[-1]) == int(wanted[-1]))


VERIFIERS: dict[str, Callable[..., float]] = {
    "clevr_count_70k": clevr_count_70k_reward_fn,
    "geometry3k": geometry3k_reward_fn,
    "gsm8k": gsm8k_reward_fn,
}
"""By name of the data set."""


def get_custom_reward_fn(path: str, **_: Any) -> Callable[..., float]:
    """The verifier of the data set whose name is in `path`. Raises UserError if there is none."""
    for name, verifier in VERIFIERS.items():
        if name in path.lower().replace("-", "_"):
            return verifier
    raise UserError(f"no verifier for {path!r}; there are {', '.join(VERIFIERS)}; pass a reward function of your own")


def final_number(text: str) -> Fraction | None:
    """The number at the end of a worked solution. None: there is none."""
    boxed = last_boxed(text)
    marked = text.rpartition("####")[2] if "####" in text else None
    for part in (boxed, marked, text):
        numbers = _NUMBER.findall(part) if part is not None else []
        if numbers:
            return as_number(numbers[-1])
    return None


def _same(found: str, wanted: str) -> bool:
    plain_found, plain_wanted = _plain(found), _plain(wanted)
    number = as_number(plain_wanted)
    return plain_found == plain_wanted or (number is not None and as_number(plain_found) == number)


def _plain(expression: str) -> str:
    plain = _LOOKS.sub(lambda match: match[1] or match[2] or "", expression).replace("\\dfrac", "\\frac")
    return re.sub(r"\\frac\{(-?\d+)\}\{(\d+)\}", r"\1/\2", plain).rstrip(".")
