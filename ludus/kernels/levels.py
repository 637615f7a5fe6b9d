"""Libraries that a wheel brings along for machines without a compiler, one for each level of instructions.

Knows: levels, what this processor understands.  Knows not: compilers, what a library computes.
`make wheels` puts them there (ship.py); a checkout has none.
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
    """What a compiler may take for granted of a processor."""

    name: str
    architecture: str
    """As `platform.machine` calls it."""
    march: str
    instructions: tuple[str, ...]
    """Of `ludus.machine.INSTRUCTION_SETS`, those that tell a processor of this level from one below it."""


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
    """That of the best level which this processor understands. None: nothing was shipped for it.

    instructions, architecture: of the processor. None, empty: of this one.
    """
    known = Machine.look(seconds=0).instructions if instructions is None else instructions
    for level in LEVELS:
        library = folder / level.name / f"{name}.so"
        understood = level.architecture == (architecture or platform.machine()) and set(level.instructions) <= {*known}
        if understood and library.exists():
            return library
    return None
