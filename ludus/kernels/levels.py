"""Finds the precompiled libraries of a wheel, for machines without a compiler: one for each level of instructions.

Knows: levels, what this processor supports.  Knows not: compilers, what a library computes.
`make wheels` adds them to a wheel (ship.py); a checkout has none.
"""

from __future__ import annotations

import platform
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ludus.machine import Machine

SHIPPED = Path(__file__).parent / "prebuilt"


@dataclass(frozen=True, slots=True)
class Level:
    """A set of instructions that a compiler may assume."""

    name: str
    architecture: str
    """As returned by `platform.machine`."""
    march: str
    instructions: tuple[str, ...]
    """Entries of `ludus.machine.INSTRUCTION_SETS` that a processor of this level has, and one below it lacks."""


_V3 = ("avx2", "fma", "bmi2", "movbe")  # a virtual machine may hide any of them
LEVELS = (
    Level("x86-64-v4", "x86_64", "x86-64-v4", ("avx512f", "avx512bw", "avx512dq", "avx512vl", *_V3)),
    Level("x86-64-v3", "x86_64", "x86-64-v3", _V3),
    Level("x86-64-v2", "x86_64", "x86-64-v2", ("sse4_2",)),
    Level("armv8", "aarch64", "armv8-a", ()),
)
"""The better ones first. Source of the x86 levels: the psABI, https://gitlab.com/x86-psABIs/x86-64-ABI"""


def shipped_library(
    name: str, instructions: Collection[str] | None = None, architecture: str = "", folder: Path = SHIPPED
) -> Path | None:
    """The library of the best level that this processor supports. None: the package has none for it.

    instructions, architecture: of the processor. None, '': this one's.
    """
    known = Machine.look(seconds=0).instructions if instructions is None else instructions
    for level in LEVELS:
        library = folder / level.name / f"{name}.so"
        understood = level.architecture == (architecture or platform.machine()) and set(level.instructions) <= {*known}
        if understood and library.exists():
            return library
    return None
