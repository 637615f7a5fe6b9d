"""The program that runs untrusted code: it first drops all access that the code must not have.

Knows: only the standard library, because it is started by its path, and Linux.  Knows not: Ludus, its caller.
Invariants: the code starts only after all ordered restrictions are in force; it has no file descriptors but its
streams; it cannot affect the guard process, and everything that the code started is killed with the guard.

    this process ─▶ the guard: first of a process namespace ─▶ the code
    (with bubblewrap this process is the guard; without walls there is no namespace)
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

# <linux/sched.h>: mounts, control groups, host name, IPC, users, processes, network
_NEW_MOUNTS, _NEW_CGROUP, _NEW_NAME, _NEW_IPC, _NEW_USER, _NEW_PROCESSES, _NEW_NETWORK = (
    *(0x00020000, 0x02000000, 0x04000000, 0x08000000),
    *(0x10000000, 0x20000000, 0x40000000),
)
_OWN = _NEW_MOUNTS | _NEW_CGROUP | _NEW_NAME | _NEW_IPC | _NEW_PROCESSES | _NEW_NETWORK
_DIE_WITH_PARENT, _DUMPABLE, _SECCOMP, _NO_NEW_PRIVILEGES = 1, 4, 22, 38  # <linux/prctl.h>
_FILTER = 2
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXEC, _BIND, _RECURSIVE, _PRIVATE = (
    1,
    2,
    4,
    8,
    4096,
    16384,
    1 << 18,
)  # <sys/mount.h>
_DETACH = 2
_MOUNT_SETATTR = 442  # the same on every architecture
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_AT_FDCWD, _AT_RECURSIVE, _ATTR_READ_ONLY_NO_SUID = -100, 0x8000, 0x3
_CAPABILITIES = 0x20080522  # version 3 of their header
_NOBODY = 65534
_WATCH_S = 0.02
"""A core can fill about 50 MB in this time."""
_SIGNALLED = 128
"""Added to the signal's number for the exit status of a process ended by a signal, as in shells."""
_KILLED = _SIGNALLED + signal.SIGKILL

libc = ctypes.CDLL(None, use_errno=True)


class _MissingError(Exception):
    """Something that this system does not allow, with its error message."""


def main() -> None:
    order: dict[str, Any] = json.loads(sys.argv[1])
    try:
        if order["walls"] == "own":
            has_powers = _own_namespaces(is_root=order["is_root"])
            guard = os.fork()
            if guard:
                os.close(order["report_fd"])
                os._exit(_wait_for(guard))
            _die_with_parent()
            _own_root(order, proc=_NO_SUID | _NO_DEVICES | _NO_EXEC | (0 if has_powers else _READ_ONLY))
            if has_powers:
                _step_down()
        guard_code(order)
    except _MissingError as missing:
        os.write(order["report_fd"], json.dumps({"missing": str(missing)}).encode())
        os._exit(1)


def guard_code(order: dict[str, Any]) -> NoReturn:
    """Start the code, watch its total resource use, and exit when it ends. The code cannot affect this process."""
    is_walled = order["walls"] != "none"
    if is_walled:
        _must(libc.prctl(_DUMPABLE, 0, 0, 0, 0), "prctl")
        if os.getpid() != 1 or not Path("/proc/1/status").exists():
            raise _MissingError("a process namespace with its own /proc")
    code = os.fork()
    if code:
        os.close(order["report_fd"])
        os._exit(_watch(code, order) if is_walled else _wait_for(code))
    _die_with_parent()
    _limit(order)
    if is_walled:
        _must(libc.prctl(_DUMPABLE, 1, 0, 0, 0), "prctl")
        _give_up_privileges(bytes.fromhex(order["filter"]))
    os.chdir(order["folder"])
    os.environ.update(HOME=order["folder"], TMPDIR=order["folder"])
    stdin = os.open(order["stdin"], os.O_RDONLY)
    os.dup2(stdin, 0)
    os.close(stdin)
    os.write(order["report_fd"], b"{}")
    os.close(order["report_fd"])
    run(Path(order["path"]), shows_last=order["shows_last"])


def run(path: Path, *, shows_last: bool) -> NoReturn:
    """Run the file as a script and exit; a traceback contains only the script's own frames."""
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
    except BaseException as error:  # whatever the code raises is the result of the run
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


# ---- walls of our own


def _own_namespaces(*, is_root: bool) -> bool:
    """Enter new namespaces for mounts, network, processes, IPC and host name. Returns True if this was done with root's
    privileges and no user namespace; `_step_down` then gives the privileges up.
    """
    if is_root and libc.unshare(_OWN) == 0:
        return True
    user, group = os.geteuid(), os.getegid()
    _must(libc.unshare(_NEW_USER | _OWN), "unshare")
    _map_user(user, group)
    return False


def _map_user(user: int, group: int) -> None:
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError as error:
        raise _MissingError(f"a user namespace of its own: {error}") from error


def _own_root(order: dict[str, Any], *, proc: int) -> None:
    """Switch to a new root file system: what the interpreter needs, read-only, and one writable folder.

    proc: flags of the mount of /proc.
    """
    root = order["root"]
    _must(libc.mount(None, b"/", None, _RECURSIVE | _PRIVATE, None), "mount private")
    _mount("tmpfs", root, "tmpfs", _NO_SUID, "mode=755,size=1m")  # holds only mount points
    for source, target in order["shown"]:
        if Path(source).is_dir():
            Path(root + target).mkdir(parents=True, exist_ok=True)
        else:
            Path(root + target).parent.mkdir(parents=True, exist_ok=True)
            Path(root + target).touch()
        _mount(source, root + target, "", _BIND | _RECURSIVE, "")
    for target, name in order["links"]:
        Path(root + name).parent.mkdir(parents=True, exist_ok=True)
        Path(root + name).symlink_to(target)
    folder = root + order["folder"]
    for place in (root + "/proc", folder):
        Path(place).mkdir()
    attributes = (ctypes.c_uint64 * 4)(_ATTR_READ_ONLY_NO_SUID, 0, 0, 0)
    changed = libc.syscall(
        *(_MOUNT_SETATTR, _AT_FDCWD, root.encode(), _AT_RECURSIVE, ctypes.byref(attributes)),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    _must(changed, "mount_setattr (Linux 5.12)")
    _mount("proc", root + "/proc", "proc", proc, "")
    most = f"mode=1777,size={order['disk_bytes']},nr_inodes={order['num_inodes']}"
    _mount("tmpfs", folder, "tmpfs", _NO_SUID | _NO_DEVICES, most)
    os.chdir(root)
    _must(libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    _must(libc.umount2(b".", _DETACH), "umount")
    os.chdir("/")
    libc.sethostname(b"sandbox", 7)


def _mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    done = libc.mount(source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None)
    _must(done, f"mount {kind or source}")


def _step_down() -> None:
    """Change from root to nobody, in a new user namespace, so that the limit on processes counts only this run's."""
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    _must(libc.prctl(_DUMPABLE, 1, 0, 0, 0), "prctl")  # otherwise the uid and gid maps cannot be written
    _die_with_parent()  # again, as the change of user clears it
    if libc.unshare(_NEW_USER) == 0:  # if this is forbidden, the processes of all runs are counted together
        _map_user(_NOBODY, _NOBODY)


# ---- what is taken from the code in any case


def _give_up_privileges(program: bytes) -> None:
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    _must(libc.capset(ctypes.byref(header), ctypes.byref(none)), "capset")
    _must(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
    instructions = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):  # struct sock_fprog of <linux/filter.h>
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))

    filtering = Program(len(program) // 8, ctypes.addressof(instructions))
    _must(libc.prctl(_SECCOMP, _FILTER, ctypes.byref(filtering), 0, 0), "seccomp")


def _limit(order: dict[str, Any]) -> None:
    limits = {
        resource.RLIMIT_AS: order["memory_bytes"],
        resource.RLIMIT_FSIZE: order["disk_bytes"],
        resource.RLIMIT_CPU: order["cpu_s"],
        resource.RLIMIT_NOFILE: order["num_files"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    if order["walls"] != "none":  # without namespaces the user's other processes would count, too
        limits[resource.RLIMIT_NPROC] = order["num_processes"]
        limits[resource.RLIMIT_MSGQUEUE] = 0
    for kind, most in limits.items():
        with contextlib.suppress(ValueError, OSError):  # a stricter limit is already in force
            resource.setrlimit(kind, (most, most))


# ---- the watch


def _watch(code: int, order: dict[str, Any]) -> int:
    """Wait for the code; returns its exit status, or that for exceeding a limit. When the guard exits, the kernel kills
    all processes of the code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == code:
            return _shell_status(status)
        if ended:
            continue
        if excess := _excess(order):
            os.write(2, f"Killed: {excess}\n".encode())
            return _KILLED
        signal.sigtimedwait({signal.SIGCHLD}, _WATCH_S)


def _excess(order: dict[str, Any]) -> str:
    """Which limit all processes and files together exceed, in words. '': none."""
    processes = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and path.name != "1"]
    if len(processes) > order["num_processes"]:
        return f"{len(processes)} processes; {order['num_processes']} are allowed"
    most = order["memory_bytes"]
    if sum(_resident_bytes(process) for process in processes) > most:
        # shared memory was counted once for each process; the exact number takes longer to read
        used = sum(_own_bytes(process) for process in processes)
        if used > most:
            return f"{used >> 20} MiB of memory in {len(processes)} processes; {most >> 20} are allowed"
    folder = os.statvfs(order["folder"])
    if folder.f_files - folder.f_ffree > order["num_inodes"]:
        return f"more than {order['num_inodes']} files"
    return ""


def _resident_bytes(process: int) -> int:
    """Resident memory of the process; read from another thread if the first one has ended."""
    names = (b"VmRSS:", b"VmSwap:")
    if found := _kib_of(f"/proc/{process}/status", names):
        return found << 10
    with contextlib.suppress(OSError):  # the process has ended
        threads = os.listdir(f"/proc/{process}/task")  # noqa: PTH208  numbers as text
        return max((_kib_of(f"/proc/{process}/task/{thread}/status", names) for thread in threads), default=0) << 10
    return 0


def _own_bytes(process: int) -> int:
    """Memory of the process with its share of shared memory; all resident memory if that cannot be read."""
    return (_kib_of(f"/proc/{process}/smaps_rollup", (b"Pss:", b"SwapPss:")) << 10) or _resident_bytes(process)


def _kib_of(path: str, names: tuple[bytes, ...]) -> int:
    try:
        with Path(path).open("rb") as file:  # binary, as names in it may be any bytes
            return sum(int(line.split()[1]) for line in file if line.startswith(names))
    except OSError:  # the process has ended, or may not be inspected
        return 0


def _wait_for(process: int) -> int:
    """Wait for the process; returns its exit status. Other children that end meanwhile are reaped."""
    while True:
        ended, status = os.wait()
        if ended == process:
            return _shell_status(status)


def _shell_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else _SIGNALLED - code


def _die_with_parent() -> None:
    if sys.platform.startswith("linux"):
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def _must(result: int, what: str) -> None:
    """Raises _MissingError if the system call failed."""
    if result != 0:
        raise _MissingError(f"{what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
