"""The program around code that nobody vouches for: takes away what it must not have, then runs it.

Knows: the standard library alone, because it starts by its path, and Linux.  Knows not: Ludus, who waits for it.
Invariants: what could not be taken away is not in the report; the code runs in a process that holds no descriptor but
its streams; with a process namespace everything that it started dies with it.

    this process ─▶ first of a process namespace ─▶ the code
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import traceback
import types
from pathlib import Path
from typing import Any, NoReturn

_NEW_USER, _NEW_IPC, _NEW_PROCESSES, _NEW_NETWORK = 0x10000000, 0x08000000, 0x20000000, 0x40000000  # <linux/sched.h>
_NO_NEW_PRIVILEGES, _DIE_WITH_PARENT = 38, 1  # <linux/prctl.h>
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # Landlock's calls, the same on every architecture
_PATH_BENEATH, _GET_ABI = 1, 1
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
# Writing, removing, and making files of every kind; moving between folders, truncating and devices came later.
_CHANGES = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))
_CHANGES_SINCE = ((2, 1 << 13), (3, _TRUNCATE))
_TCP_SINCE, _TCP = 4, 0b11
_SCOPE_SINCE, _SCOPE = 6, 0b11
_SIGNALLED = 128
"""Exit status of a process that a signal ended, less the signal's number, as shells have it."""


def main() -> None:
    order: dict[str, Any] = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    isolation = _own_namespaces(libc)
    _limit(order, own_user="processes" in isolation)
    isolation += _own_files(libc, order["folder"])
    os.write(order["report_fd"], json.dumps(isolation).encode())
    os.close(order["report_fd"])
    first = os.fork()
    if first:
        os._exit(_wait_for(first))
    libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if "processes" in isolation:  # the first process of a namespace hears no signals; it only waits
        code = os.fork()
        if code:
            os._exit(_wait_for(code))
    run(Path(order["path"]), shows_last=order["shows_last"])


def run(path: Path, *, shows_last: bool) -> NoReturn:
    """Runs the file as a script of its own and leaves; its traceback names no frame but its own."""
    script = types.ModuleType("__main__")
    script.__file__ = str(path)
    sys.modules["__main__"] = script
    sys.argv = [str(path)]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what was printed before a deadline counts
    status = 0
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), path.name)
        last = tree.body.pop() if shows_last and tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, path.name, "exec"), vars(script))
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), path.name, "eval"), vars(script))
            if value is not None:
                print(repr(value))  # noqa: T201  the program's own output
    except SystemExit as leaving:
        status = _exit_status(leaving)
    except BaseException as error:  # whatever the code raises is its result
        status = 1
        own = error.__traceback__.tb_next if error.__traceback__ is not None else None
        is_own_syntax = isinstance(error, SyntaxError) and error.filename == path.name
        traceback.print_exception(type(error), error, None if is_own_syntax else own)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _exit_status(leaving: SystemExit) -> int:
    if leaving.code is None or isinstance(leaving.code, int):
        return (leaving.code or 0) & 0xFF
    print(leaving.code, file=sys.stderr)  # noqa: T201  as the interpreter does
    return 1


def _own_namespaces(libc: Any) -> list[str]:
    """Leaves the network, the processes and the shared memory of the machine behind, where the system allows it."""
    user, group = os.getuid(), os.getgid()
    own = _NEW_NETWORK | _NEW_PROCESSES | _NEW_IPC
    if not sys.platform.startswith("linux") or (libc.unshare(_NEW_USER | own) and libc.unshare(own)):
        return []
    with contextlib.suppress(OSError):  # without a map the user is nobody, which is less still
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return ["network", "processes"]


def _own_files(libc: Any, folder: str) -> list[str]:
    """Nothing outside of `folder` can be changed any more, where the kernel has Landlock; nor processes outside
    be traced."""
    if not sys.platform.startswith("linux") or libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        return []
    abi = libc.syscall(_CREATE_RULESET, None, 0, _GET_ABI)
    if abi < 1:
        return []
    changes = _CHANGES | sum(bit for since, bit in _CHANGES_SINCE if abi >= since)
    handled = (changes, _TCP if abi >= _TCP_SINCE else 0, _SCOPE if abi >= _SCOPE_SINCE else 0)
    rules = (ctypes.c_uint64 * 3)(*handled)
    size = 8 * (1 + (abi >= _TCP_SINCE) + (abi >= _SCOPE_SINCE))
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(rules), size, 0)
    if ruleset < 0:
        return []
    files = _WRITE_FILE | (_TRUNCATE & changes)
    _allow(libc, ruleset, folder, changes)
    _allow(libc, ruleset, os.devnull, files)
    restricted = libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return [] if not restricted else ["files", "tcp"] if abi >= _TCP_SINCE else ["files"]


def _allow(libc: Any, ruleset: int, path: str, access: int) -> None:
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = access.to_bytes(8, sys.byteorder) + opened.to_bytes(4, sys.byteorder)
    libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    os.close(opened)


def _limit(order: dict[str, Any], *, own_user: bool) -> None:
    limits = {
        resource.RLIMIT_AS: order["memory_bytes"],
        resource.RLIMIT_FSIZE: order["file_bytes"],
        resource.RLIMIT_CPU: order["cpu_s"],
        resource.RLIMIT_NOFILE: order["num_files"],
        resource.RLIMIT_CORE: 0,
    }
    if own_user:  # elsewhere the user's other processes would count
        limits[resource.RLIMIT_NPROC] = order["num_processes"]
    for kind, most in limits.items():
        with contextlib.suppress(ValueError, OSError):  # a stricter limit is in force already
            resource.setrlimit(kind, (most, most))


def _wait_for(process: int) -> int:
    """Exit status of the process; others that end meanwhile are let go."""
    while True:
        ended, status = os.wait()
        if ended == process:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _SIGNALLED - code


if __name__ == "__main__":
    main()
