"""Describes the machine of a result: processor, cores, memory, versions, the card and what was held of it.

Knows: the operating system (`ludus.machine`), torch if it was imported.  Knows not: what was measured.
"""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import Any

from ludus.loop.memory import card_mb
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


def card(torch: Any = None) -> dict[str, Any]:
    """`card`, the name of the card that this process computed on, and `peak_card_mb`, the most memory that it held
    there, in MiB. Empty: it computed on none.

    torch: None: the imported one.
    """
    torch = torch or sys.modules.get("torch")
    held = card_mb(torch)
    return {} if held is None else {"card": torch.cuda.get_device_name(), "peak_card_mb": held[1]}
