"""The token ledger for the page: how many sampled tokens were trained, masked or evaluated, by step and in total.

Knows: names of metrics, a summary.  Knows not: how the tokens were counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ludus.runs.watch.curves import Curves

_MASKED = "ledger/masked_"


def ledger_of(curves: Curves, summary: Mapping[str, Any] | None, *, num_evaluated: int) -> dict[str, Any]:
    """The ledger in the run's summary; before the run's end, the sum over its steps and evaluations so far.

    num_evaluated: number of tokens sampled in evaluations.
    """
    reasons = [name for name in curves.names if name.startswith(_MASKED)]
    by_step = []
    for step, _ in curves.points("ledger/sampled"):
        numbers = curves.at(step)
        masked = {name.removeprefix(_MASKED): int(numbers[name]) for name in reasons if numbers.get(name)}
        sampled, trained = int(numbers["ledger/sampled"]), int(numbers.get("ledger/trained", 0))
        by_step.append({"step": step, "sampled": sampled, "trained": trained, "masked": masked})
    known = (summary or {}).get("ledger")
    whole = known if isinstance(known, dict) else _sum(by_step, num_evaluated)
    sampled, trained, masked = whole.get("sampled", 0), whole.get("trained", 0), whole.get("masked", {})
    is_balanced = sampled == trained + sum(masked.values())
    return {"sampled": sampled, "trained": trained, "masked": masked, "balanced": is_balanced, "by_step": by_step}


def _sum(by_step: list[dict[str, Any]], num_evaluated: int) -> dict[str, Any]:
    masked: dict[str, int] = {"evaluation": num_evaluated} if num_evaluated else {}
    for each in by_step:
        for reason, count in each["masked"].items():
            masked[reason] = masked.get(reason, 0) + count
    sampled = sum(each["sampled"] for each in by_step) + num_evaluated
    return {"sampled": sampled, "trained": sum(each["trained"] for each in by_step), "masked": masked}
