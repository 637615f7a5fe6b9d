"""Processes that can be killed: calls of Python functions with a deadline, an environment and captured output."""

from ludus.processes.calls import (
    Call,
    CallEnd,
    Crashed,
    Output,
    Raised,
    Remote,
    Returned,
    TimedOut,
    WorkerCrashedError,
    WorkerTimeoutError,
)
from ludus.processes.pool import Lease, WorkerPool

__all__ = [
    "Call",
    "CallEnd",
    "Crashed",
    "Lease",
    "Output",
    "Raised",
    "Remote",
    "Returned",
    "TimedOut",
    "WorkerCrashedError",
    "WorkerPool",
    "WorkerTimeoutError",
]
