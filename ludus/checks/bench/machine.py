"""Describes the machine of a result: processor, cores, memory, versions.

Knows: the operating system (`ludus.machine`).  Knows not: torch, except its version.
"""

from __future__ import annotations

import platform
from importlib import metadata

from ludus.machine import Machine

_PACKAGES = ("torch", "transformers")


def machine() -> str:
    """Such as 'AMD EPYC 9V45, 2 cores, 24 GB'."""
    found = Machine.look(seconds=0)
    memory = "" if found.memory_bytes is None else f", {found.memory_bytes / 2**30:.0f} GB"
    return f"{found.processor or platform.machine()}, {found.cores} cores{memory}"


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that compute, in this environment."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
    return found
