from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

_ARENAS = """
import ctypes, threading
from ludus.processes.allocator import share_one_arena

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.open_memstream.restype = ctypes.c_void_p
libc.open_memstream.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t)]
libc.malloc_info.argtypes, libc.fclose.argtypes = [ctypes.c_int, ctypes.c_void_p], [ctypes.c_void_p]

share_one_arena()
together = threading.Barrier(6)
def allocate():
    together.wait()
    libc.malloc(60_000)
    together.wait()  # all are alive at once: none takes over what another has left
threads = [threading.Thread(target=allocate) for _ in range(6)]
for each in threads: each.start()
for each in threads: each.join()
text, size = ctypes.c_void_p(), ctypes.c_size_t()
stream = libc.open_memstream(ctypes.byref(text), ctypes.byref(size))
libc.malloc_info(0, stream)
libc.fclose(stream)
print(ctypes.string_at(text.value, size.value).decode().count("<heap "))
"""


def _num_arenas(**environment: str) -> int:
    told = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    found = subprocess.run(
        [sys.executable, "-c", _ARENAS], env={**told, **environment}, capture_output=True, text=True, check=True
    )
    return int(found.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_threads_share_one_arena() -> None:
    """By glibc's own account; where the environment says how many there are, it decides."""
    assert _num_arenas() == 1
    assert _num_arenas(MALLOC_ARENA_MAX="4") == 4
