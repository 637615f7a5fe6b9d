"""A command without some features of Linux: `python without.py NAMES COMMAND…`, names parted by commas.

A system call fails with EPERM, as where a container's runtime forbids it, for the command and all that it starts.
`functions` are those of Python's that macOS lacks, `os.waitid` among them: they are not there.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from pathlib import Path

FUNCTIONS = Path(__file__).with_name("without_functions")
CALLS = {
    "prctl": {"x86_64": (157,), "aarch64": (167,)},
    "seccomp": {"x86_64": (317,), "aarch64": (277,)},
    "namespaces": {"x86_64": (272, 308), "aarch64": (97, 268)},  # unshare, setns
    "mount_setattr": {"x86_64": (442,), "aarch64": (442,)},
    "landlock": {"x86_64": (444, 445, 446), "aarch64": (444, 445, 446)},
}
"""Their numbers by architecture."""
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2
_LOAD, _IF_EQUAL, _RETURN, _REFUSE, _ALLOW = 0x20, 0x15, 0x06, 0x00050000, 0x7FFF0000


class _Program(ctypes.Structure):  # struct sock_fprog
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def main() -> None:
    names, command = sys.argv[1].split(","), sys.argv[2:]
    if "functions" in names:
        names.remove("functions")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(FUNCTIONS), os.environ.get("PYTHONPATH"))))
    program = [struct.pack("=HBBI", _LOAD, 0, 0, 0)]
    for number in (each for name in names for each in CALLS[name][platform.machine()]):
        program += [struct.pack("=HBBI", _IF_EQUAL, 0, 1, number)]
        program += [struct.pack("=HBBI", _RETURN, 0, 0, _REFUSE | errno.EPERM)]
    program.append(struct.pack("=HBBI", _RETURN, 0, 0, _ALLOW))
    libc = ctypes.CDLL(None, use_errno=True)
    filtering = _Program(len(program), b"".join(program))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(filtering)):
        raise OSError(ctypes.get_errno(), "the filter was refused")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
