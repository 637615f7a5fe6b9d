"""Default verifiers for rows in verl's format, by data source.

Knows: the solution formats of well-known data sets.  Knows not: agents, episodes.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from ludus.compat.members import takes
from ludus.errors import UserError
from ludus.rewards.answers import as_number, last_boxed, math_verify_all
from ludus.settings import did_you_mean

_FINAL = re.compile(r"####\s*(-?[$\d][\d.,]*)")
"""GSM8K's own mark of the final answer, which the prompts of that data set ask for."""
_BARE = "\\boxed "
_NUMBER = re.compile(r"-?\$?\d[\d.,]*")

Verifier = Callable[[str, str], Awaitable[float]]
"""Maps (answer, solution) to 1.0 if it is right; else to 0.0, or -1.0 where verl does."""


async def gsm8k(solution_str: str, ground_truth: str) -> float:
    """Whether the last number behind `####` is the right one."""
    return score_gsm8k(solution_str, ground_truth)


def score_gsm8k(
    solution_str: str,
    ground_truth: str,
    method: Literal["strict", "flexible"] = "strict",
    format_score: float = 0.0,
    score: float = 1.0,
) -> float:
    """`score` for the right number, `format_score` for another one, 0 for none.

    method: strict: the last number behind `####`. flexible: the last number of all.
    """
    if method not in ("strict", "flexible"):
        raise UserError(f"method={method!r} is none; allowed: 'strict', 'flexible'")
    found = (_FINAL if method == "strict" else _NUMBER).findall(solution_str)
    given = as_number(found[-1]) if found else None
    if given is None:
        return 0.0
    return score if given == as_number(ground_truth.rpartition("####")[2]) else format_score


async def mathematics(solution_str: str, ground_truth: str) -> float:
    """Whether math-verify finds the solution's value in the answer."""
    (score,) = await math_verify_all([solution_str], [ground_truth])
    return score


async def competition(solution_str: str, ground_truth: str) -> float:
    """As `mathematics`, but a wrong answer scores -1, as verl scores the rows of DAPO and AIME."""
    return 1.0 if await mathematics(solution_str, ground_truth) == 1.0 else -1.0


def last_boxed_only_string(string: str) -> str | None:
    r"""The last `\boxed{…}` or `\fbox{…}` of a solution of MATH, or `\boxed …` up to the next `$`. None: there is
    none."""
    if _BARE in string:
        return _BARE + string.rpartition(_BARE)[2].partition("$")[0]
    for opening in ("\\boxed{", "\\fbox{"):
        if (inside := last_boxed(string, opening)) is not None:
            return f"{opening}{inside}}}"
    return None


def remove_boxed(s: str) -> str:
    """What stands in such a box. Raises UserError if it is none."""
    if s.startswith(_BARE):
        return s.removeprefix(_BARE)
    if not (s.startswith("\\boxed{") and s.endswith("}")):
        raise UserError(f"{s!r:.100} must be \\boxed{{…}}, as last_boxed_only_string finds it")
    return s.removeprefix("\\boxed{")[:-1]


VERIFIERS: Mapping[str, Verifier] = {
    "openai/gsm8k": gsm8k,
    "lighteval/MATH": mathematics,
    "DigitalLearningGmbH/MATH-lighteval": mathematics,
    "HuggingFaceH4/MATH-500": mathematics,
    "math_dapo": competition,
}
"""By the column `data_source`."""


def verifier_of(data_source: object) -> Verifier | None:
    """The verifier of a data source; `math` and `aime` match as prefixes. None: there is none."""
    name = str(data_source)
    return VERIFIERS.get(name, competition if name.startswith(("aime", "math")) else None)


@takes("verl", "utils.reward_score.default_compute_score")
async def default_compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,  # noqa: ARG001  verl's signature
    sandbox_fusion_url: str | None = None,  # noqa: ARG001  verl's arguments; `takes` says that they do nothing
    concurrent_semaphore: Any = None,  # noqa: ARG001
    memory_limit_mb: int | None = None,  # noqa: ARG001
    **_: Any,
) -> float:
    """The score of an answer by its data source. Raises UserError for a source that nobody knows."""
    verify = verifier_of(data_source)
    if verify is None:
        hint = did_you_mean(str(data_source), VERIFIERS)
        raise UserError(f"no verifier knows the data_source {data_source!r}{hint} There are: {', '.join(VERIFIERS)}")
    if ground_truth is None:
        raise UserError(f"the row of {data_source!r} has no reward_model.ground_truth to compare the answer with")
    return await verify(solution_str, str(ground_truth))
