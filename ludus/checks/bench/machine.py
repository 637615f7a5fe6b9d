"""What a result was measured on, in words: processor, cores, memory, versions.

Knows: the operating system.  Knows not: torch (it is asked for its version alone).
"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

_PACKAGES = ("torch", "transformers")


def machine() -> str:
    """Such as 'AMD EPYC 9V45, 2 cores, 24 GB'."""
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    return f"{processor}, {os.cpu_count()} cores, {gigabytes:.0f} GB"


def versions() -> dict[str, str]:
    """Of Python and of what computes, in this environment."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
    return found
