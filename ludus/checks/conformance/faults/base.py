"""One fault: what is wrong, the part of the server that has it, and the cases that should see it first.

Knows: the parts of the server.  Knows not: how they are changed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ludus.checks.conformance.own import Parts
from ludus.checks.conformance.tamper import Tampered, Tampering


@dataclass(frozen=True, slots=True)
class Fault:
    """A server that is wrong in one way."""

    name: str
    says: str
    """What it does, in words."""
    parts: Parts
    near: tuple[str, ...]
    """Beginnings of the names of the cases to play first; the others follow if these see nothing."""


def on_the_wire(name: str, says: str, tampering: Tampering, *near: str) -> Fault:
    """A fault between the application and the socket."""
    return Fault(name, says, Parts(app=lambda app: Tampered(app, tampering)), near)
