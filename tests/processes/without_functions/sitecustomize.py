"""Takes from Python what it lacks on macOS (`os.waitid` before 3.13), in processes with this folder on PYTHONPATH."""

import os
import resource
import select
import signal

ABSENT = {
    os: (
        *("waitid", "P_PID", "WNOWAIT", "CLD_EXITED", "pidfd_open", "sched_getaffinity", "sched_setscheduler"),
        *("SCHED_IDLE", "memfd_create", "eventfd", "setns", "unshare", "getresuid", "setresuid", "posix_fallocate"),
    ),
    resource: ("prlimit", "RLIMIT_MSGQUEUE"),
    select: ("epoll",),
    signal: ("sigtimedwait", "sigwaitinfo"),
}
for module, names in ABSENT.items():
    for name in names:
        if hasattr(module, name):  # newer ones are not in every Python
            delattr(module, name)
