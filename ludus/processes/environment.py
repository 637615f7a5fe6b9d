"""Selects environment variables for agents and tools: those that they need to run, and no secrets.

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
        *("PYTHONPATH", "PYTHONHASHSEED", "PYTHONUNBUFFERED", "NO_PROXY"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    }
)
"""Variables that programs need and that hold no secrets. `LC_…`, the locale, is passed on as well."""


def handed_on(names: Iterable[str] = ()) -> dict[str, str]:
    """The environment for a program that runs untrusted code. names: further variables to pass on."""
    wanted = _HANDED_ON | set(names)
    return {name: value for name, value in os.environ.items() if name in wanted or name.startswith("LC_")}


def forget(name: str) -> None:
    """Remove a variable from the environment, on Linux also from /proc, where other processes of this user see it."""
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
