"""What of this process's environment others are given: agents and tools what they need to run, and no secrets.

Knows: names of variables.  Knows not: who is started.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable

_HANDED_ON = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "XDG_CACHE_HOME"),
        *("LD_LIBRARY_PATH", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR", "OMP_NUM_THREADS"),
        *("PYTHONPATH", "PYTHONHASHSEED", "PYTHONUNBUFFERED", "CUDA_VISIBLE_DEVICES", "NO_PROXY"),
    }
)
"""Programs need them, and nobody keeps a secret in them; and so `LC_…`, the locale."""


def handed_on(names: Iterable[str] = ()) -> dict[str, str]:
    """The environment of a program that runs what this process does not trust. names: variables that it gets too."""
    wanted = _HANDED_ON | set(names)
    return {name: value for name, value in os.environ.items() if name in wanted or name.startswith("LC_")}


def forget(name: str) -> None:
    """Removes a variable from the environment, also from what other processes of this user see of it (on Linux)."""
    value = os.environ.get(name)
    if value is None:
        return
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_void_p
        # what the process was started with stays readable in /proc until it is written over
        place = libc.getenv(name.encode())
        if place is not None:
            ctypes.memset(place, 0, len(os.fsencode(value)))
    del os.environ[name]
