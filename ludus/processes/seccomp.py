"""The seccomp filter for untrusted code: a BPF program that Linux runs before each system call.

Knows: numbers of system calls, classic BPF.  Knows not: what is filtered, namespaces.
Invariants: calls not listed here are allowed; a call with another architecture's numbers kills the process.

Refused are calls that bypass namespaces (keys, file handles, tracing, virtual sockets), calls that create namespaces,
calls that allocate memory not attributed to a process, and calls that change the scheduling of processes.
Source: numbers as in Linux's <asm/unistd_64.h> and <asm-generic/unistd.h>; the program as in seccomp(2).
"""

from __future__ import annotations

import errno
import platform
import struct

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the tables; <linux/audit.h>
_X32_CALLS = 0x40000000
"""On x86_64 calls from this number on belong to the x32 ABI."""

_REFUSED: dict[str, int | tuple[int, int]] = {
    # names, and creation, of namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "open_tree_attr": 467,
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # other processes, and how they are scheduled
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # memory that is not attributed to a process
    "memfd_create": (319, 279),
    "memfd_secret": 447,
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "vmsplice": (278, 75),
    # the kernel itself, and its less tested interfaces
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": 443,
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    "personality": (135, 92),
}
_CLONE, _CLONE3, _SOCKET, _IOCTL, _PRLIMIT = (56, 220), 435, (41, 198), (16, 29), (302, 261)
_NEW_NAMESPACES = 0x7E020080  # <linux/sched.h>: every CLONE_NEW… flag
_FAMILIES = (1, 2, 10)  # Unix sockets, and the Internet's, which end at the run's own network
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX inject input into the user's terminal

_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, (16, 24)
"""Offsets in `struct seccomp_data`; for arguments, of their lower half."""
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _REFUSE, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000


def filter_program(machine: str | None = None) -> bytes | None:
    """The filter's instructions, 8 bytes each. None: the call numbers of this architecture are not known here.

    machine: as returned by `platform.machine`. None: this machine.
    """
    if (known := _ARCHITECTURES.get(machine or platform.machine())) is None:
        return None
    column, architecture = known
    program = [
        _do(_LOAD, _ARCHITECTURE),
        _unless(_IF_EQUAL, architecture, skip=1, otherwise=0),
        _do(_RETURN, _KILL),
        _do(_LOAD, _NUMBER),
    ]
    if column == 0:
        program += [_unless(_IF_AT_LEAST, _X32_CALLS), _do(_RETURN, _KILL)]
    refusal = _do(_RETURN, _REFUSE | errno.EPERM)
    for call in _REFUSED.values():
        program += [_unless(_IF_EQUAL, _of(call, column)), refusal]
    # ENOSYS makes libc fall back to clone, whose flags the filter can read
    program += [_unless(_IF_EQUAL, _CLONE3), _do(_RETURN, _REFUSE | errno.ENOSYS)]
    program += _looking_at(_of(_CLONE, column), 0, [_unless(_IF_ANY_BIT, _NEW_NAMESPACES), refusal])
    program += _looking_at(_of(_IOCTL, column), 1, [part for n in _TERMINAL_INPUT for part in _refusing(n, refusal)])
    families = [
        _unless(_IF_EQUAL, family, skip=len(_FAMILIES) - idx, otherwise=0) for idx, family in enumerate(_FAMILIES)
    ]
    program += _looking_at(_of(_SOCKET, column), 0, [*families, _do(_RETURN, _REFUSE | errno.EAFNOSUPPORT)])
    program += _looking_at(_of(_PRLIMIT, column), 0, [_unless(_IF_EQUAL, 0, skip=1, otherwise=0), refusal])
    program.append(_do(_RETURN, _ALLOW))
    return b"".join(program)


def _of(call: int | tuple[int, int], column: int) -> int:
    return call if isinstance(call, int) else call[column]


def _do(code: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, 0, 0, value)


def _unless(test: int, value: int, *, skip: int = 0, otherwise: int = 1) -> bytes:
    """Skip `skip` instructions if the test holds, else `otherwise`."""
    return struct.pack("=HBBI", test, skip, otherwise, value)


def _refusing(value: int, refusal: bytes) -> list[bytes]:
    return [_unless(_IF_EQUAL, value), refusal]


def _looking_at(call: int, argument: int, tests: list[bytes]) -> list[bytes]:
    """For one call: tests of an argument; the call is allowed if none of them refuses it."""
    body = [_do(_LOAD, _ARGUMENT[argument]), *tests, _do(_RETURN, _ALLOW)]
    return [_unless(_IF_EQUAL, call, otherwise=len(body)), *body]
