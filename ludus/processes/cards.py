"""Lists the NVIDIA cards that this process may use, without importing torch or creating a CUDA context.

Knows: NVML, nvidia-smi, the driver's files, CUDA_VISIBLE_DEVICES.  Knows not: what the cards are used for.
The driver's library (NVML) is tried first: containers and WSL have it, but may lack the driver's files.
Invariant: a card is called by its uuid wherever it is known. A number means one card to the driver, another to CUDA
where cards differ, and a third in a process that is given some of them.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

VISIBLE = "CUDA_VISIBLE_DEVICES"
_ORDER, _DRIVERS_ORDER = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
_ROOT = Path("/")
# Its usual name, and its path on WSL.
_LIBRARIES = ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
_QUERY = ("--query-gpu=uuid,memory.total,memory.free,name", "--format=csv,noheader,nounits")
_QUERY_S = 20.0  # if the driver must be loaded first, this takes seconds
_TEXT_BYTES = 96  # NVML's longest uuid, and longest name
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Card:
    """One card, or the part of one that MIG makes."""

    name: str
    """Its name in CUDA_VISIBLE_DEVICES: its uuid, or its number if the driver does not tell more."""
    num_bytes: int | None
    """Size of its memory. None: not known."""
    free_bytes: int | None = None
    """Memory that is free now. None: not known."""


@dataclass(frozen=True, slots=True)
class _Found:
    uuid: str
    """Empty: not known."""
    num_bytes: int | None = None
    free_bytes: int | None = None
    model: str = ""
    parts: tuple[_Found, ...] = ()
    """Where MIG has divided it, and CUDA finds its parts instead."""

    def card(self, name: str) -> Card:
        """name: for one whose uuid is not known."""
        return Card(self.uuid or name, self.num_bytes, self.free_bytes)

    @property
    def usable(self) -> tuple[_Found, ...]:
        return self.parts or (self,)


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
    """The cards that this process may use. Empty: there are none, or none may be used.

    They are in CUDA's order if all are of the same model, or CUDA_VISIBLE_DEVICES names them. Of the parts of cards
    CUDA gives a process one only, the first.
    """
    visible = environ.get(VISIBLE)
    if visible is not None and not visible.strip(" ,"):
        return ()
    found = _by_library(nvml()) or _by_program(root) or _by_files(root)
    if visible is None:
        return tuple(each.card(str(number)) for number, whole in enumerate(found) for each in whole.usable)
    # CUDA numbers different cards by their speed, unless it is told otherwise
    are_numbered = len({each.model for each in found}) <= 1 or environ.get(_ORDER) == _DRIVERS_ORDER
    cards: list[Card] = []
    for name in visible.split(","):
        known = _named(name.strip(), found, are_numbered=are_numbered)
        if known is None:  # CUDA ignores an invalid entry and all that follow
            break
        cards.append(known)
    return tuple(cards) if len({card.name for card in cards}) == len(cards) else ()  # CUDA takes no card twice


def _named(name: str, found: list[_Found], *, are_numbered: bool) -> Card | None:
    """The card that an entry of CUDA_VISIBLE_DEVICES means. None: there is none of that name."""
    if name.isdigit():
        if not found:  # without an answer from the driver, the entry is taken as valid
            return Card(name, None)
        number = int(name)
        if number >= len(found):
            return None
        return found[number].usable[0].card(name) if are_numbered else Card(name, None)
    if not name or name.startswith("-"):
        return None
    every = [each for whole in found for each in (*whole.usable, whole)]
    known = next((each for each in every if each.uuid.startswith(name)), None)
    if known is not None:
        return known.usable[0].card(name)
    # an older driver calls parts by other names than their uuids
    is_told = name.startswith("GPU-") and any(each.uuid for each in found)
    return None if is_told else Card(name, None)


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
    handle = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)):
        return _Found("")
    model = ctypes.create_string_buffer(_TEXT_BYTES)
    name = "" if library.nvmlDeviceGetName(handle, model, _TEXT_BYTES) else model.value.decode(errors="replace")
    return replace(_described(library, handle), model=name, parts=tuple(_parts(library, handle)))


def _described(library: Any, handle: ctypes.c_void_p) -> _Found:
    memory, uuid = _Memory(), ctypes.create_string_buffer(_TEXT_BYTES)
    if library.nvmlDeviceGetUUID(handle, uuid, _TEXT_BYTES):
        return _Found("")
    if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):  # fails on cards that share the host's memory
        return _Found(uuid.value.decode())
    return _Found(uuid.value.decode(), memory.total, memory.free)


def _parts(library: Any, handle: ctypes.c_void_p) -> Iterator[_Found]:
    """The parts of a card that is divided by MIG. Of one that is not, or cannot be: none."""
    is_divided, later, most = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
    try:
        if library.nvmlDeviceGetMigMode(handle, ctypes.byref(is_divided), ctypes.byref(later)) or not is_divided.value:
            return
        if library.nvmlDeviceGetMaxMigDeviceCount(handle, ctypes.byref(most)):
            return
    except AttributeError:  # a library from before MIG
        return
    for number in range(most.value):
        part = ctypes.c_void_p()
        if not library.nvmlDeviceGetMigDeviceHandleByIndex(handle, number, ctypes.byref(part)):
            yield _described(library, part)


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
    found = []
    for line in asked.stdout.splitlines():
        if not line.startswith("GPU-"):  # a message, such as that there are none
            continue
        uuid, total, free, model = (each.strip() for each in line.split(",", 3))
        num_bytes, free_bytes = (int(each) * _MIB if each.isdigit() else None for each in (total, free))
        found.append(_Found(uuid, num_bytes, free_bytes, model))
    return found


def _by_files(root: Path) -> list[_Found]:
    folder = root / "proc/driver/nvidia/gpus"
    num_known = len(list(folder.iterdir())) if folder.is_dir() else 0
    return [_Found("")] * (num_known or len(list(root.glob("dev/nvidia[0-9]*"))))
