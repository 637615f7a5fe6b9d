"""The interface of checks: their verdicts (measured values, and whether the rule holds) and progress callbacks.

Knows: records.  Knows not: any check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

MODEL = "smollm2-135m"
OnDone = Callable[[int, int], object]
"""Called with the amount that is done, and the total."""


def ignore(_done: int, _total: int) -> None:
    """An `OnDone` that shows no progress."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Base of the checks' results, which are named NAMEResult; fields with repr=False are not in the JSON object."""

    @property
    def ok(self) -> bool:
        raise NotImplementedError

    @property
    def details(self) -> Sequence[Mapping[str, object]]:
        """Rows with the same keys, to be shown as a table."""
        return ()

    def to_json(self) -> dict[str, object]:
        """The name of the check, its fields in order, and the verdict."""
        shown = {each.name: getattr(self, each.name) for each in fields(self) if each.repr}
        return {"check": type(self).__name__.removesuffix("Result").lower(), **shown, "ok": self.ok}
