"""What a check is given and returns: what it measured, field by field, and whether its law holds.

Knows: records.  Knows not: any check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

MODEL = "smollm2-135m"
OnDone = Callable[[int, int], object]
"""Called with how much is done, and of how much."""


def ignore(_done: int, _total: int) -> None:
    """Shows no progress."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A record of a check called NAMEResult; a field that its repr leaves out is no part of the JSON object."""

    @property
    def ok(self) -> bool:
        raise NotImplementedError

    @property
    def details(self) -> Sequence[Mapping[str, object]]:
        """Rows with the same headers, for a person to read."""
        return ()

    def to_json(self) -> dict[str, object]:
        """The name of the check, the fields in their order, the verdict."""
        shown = {each.name: getattr(self, each.name) for each in fields(self) if each.repr}
        return {"check": type(self).__name__.removesuffix("Result").lower(), **shown, "ok": self.ok}
