"""Lists the NVIDIA cards that this process may use, without importing torch or creating a CUDA context.

Knows: NVML, nvidia-smi, the driver's files, CUDA_VISIBLE_DEVICES.  Knows not: what the cards are used for.
The driver's library (NVML) is tried first: containers and WSL have it, but may lack the driver's files.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

VISIBLE = "CUDA_VISIBLE_DEVICES"
_ROOT = Path("/")
# Its usual name, and its path on WSL.
_LIBRARIES = ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
_QUERY = ("--query-gpu=uuid,memory.total,memory.free", "--format=csv,noheader,nounits")
_QUERY_S = 20.0  # if the driver must be loaded first, this takes seconds
_UUID_BYTES = 96
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Card:
    """One card."""

    name: str
    """Its name in CUDA_VISIBLE_DEVICES."""
    num_bytes: int | None
    """Size of its memory. None: not known."""
    free_bytes: int | None = None
    """Memory that is free now. None: not known."""


@dataclass(frozen=True, slots=True)
class _Found:
    uuid: str
    num_bytes: int | None = None
    free_bytes: int | None = None


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def load_nvml() -> Any:
    """The driver's library. None: there is none."""
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def find_cards(
    environ: Mapping[str, str] = os.environ, *, nvml: Callable[[], Any] = load_nvml, root: Path = _ROOT
) -> tuple[Card, ...]:
    """The cards visible to CUDA in this process, in CUDA's order. Empty: there are none, or none may be used.

    Cards have the driver's numbers, which is CUDA's order if all are of the same model.
    """
    visible = environ.get(VISIBLE)
    if visible is not None and not visible.strip(" ,"):
        return ()
    found = _by_library(nvml()) or _by_program(root) or _by_files(root)
    if visible is None:
        return tuple(Card(str(number), each.num_bytes, each.free_bytes) for number, each in enumerate(found))
    cards = []
    for name in visible.split(","):
        known = _named(name.strip(), found)
        if known is None:  # CUDA ignores an invalid entry and all that follow
            break
        cards.append(Card(name.strip(), known.num_bytes, known.free_bytes))
    return tuple(cards)


def _named(name: str, found: list[_Found]) -> _Found | None:
    if name.isdigit():
        # without an answer from the driver, the entry is taken as valid
        return found[int(name)] if int(name) < len(found) else None if found else _Found("")
    if name.startswith("-"):
        return None
    if not name.startswith("GPU-"):  # a MIG instance
        return _Found(name)
    return next((each for each in found if each.uuid.startswith(name)), None if found else _Found(name))


def _by_library(library: Any) -> list[_Found]:
    if library is None or library.nvmlInit_v2():
        return []
    try:
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return []
        return [_asked(library, number) for number in range(count.value)]
    finally:
        library.nvmlShutdown()


def _asked(library: Any, number: int) -> _Found:
    handle, memory, uuid = ctypes.c_void_p(), _Memory(), ctypes.create_string_buffer(_UUID_BYTES)
    if library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)):
        return _Found("")
    if library.nvmlDeviceGetUUID(handle, uuid, _UUID_BYTES):
        return _Found("")
    if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):  # fails on cards that share the host's memory
        return _Found(uuid.value.decode())
    return _Found(uuid.value.decode(), memory.total, memory.free)


def _by_program(root: Path) -> list[_Found]:
    beside = root / "usr/lib/wsl/lib/nvidia-smi"
    program = str(beside) if beside.is_file() else shutil.which("nvidia-smi") if root == _ROOT else None
    if program is None:
        return []
    try:
        asked = subprocess.run([program, *_QUERY], capture_output=True, text=True, timeout=_QUERY_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        _log.info("%s does not tell which cards there are: %s", program, error)
        return []
    lines = [[each.strip() for each in line.split(",")] for line in asked.stdout.splitlines() if line.strip()]
    return [_Found(uuid, *(int(each) * _MIB if each.isdigit() else None for each in sizes)) for uuid, *sizes in lines]


def _by_files(root: Path) -> list[_Found]:
    folder = root / "proc/driver/nvidia/gpus"
    num_known = len(list(folder.iterdir())) if folder.is_dir() else 0
    return [_Found("")] * (num_known or len(list(root.glob("dev/nvidia[0-9]*"))))
