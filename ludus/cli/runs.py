"""`ludus status`, `ludus stop`: the processes of a run, from another terminal."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import httpx
from rich.console import Console
from typer import Argument

from ludus.api.live import duration
from ludus.cli.console import plain_table, say
from ludus.cluster.slurm import cancel_job, interrupt_job, job_of, job_state
from ludus.cluster.status import NAME, HeadView, RunStatus, read_status
from ludus.errors import BackendError, UserError

Run = Annotated[Path, Argument(metavar="RUN", help="The run's folder, such as runs/guess.")]
_TIMEOUT_S = 5.0


def status(run: Run) -> None:
    """Show which processes a run has, where they are, and whether they live.

    [bold]Example:[/]  ludus status runs/guess
    """
    run_status = _status_of(run)
    if run_status is None:
        return say(_without_head(run))
    head = run_status.head
    job = "" if head.job is None else f", job {head.job}"
    since = duration(time.time() - head.started_at)
    say(f"head   pid {head.pid} on {head.host}, {head.scheduler}{job}, since {since}: {_life(head)}")
    if not run_status.roles:
        return None
    table = plain_table("role", "state", "since", "restarts", "where", "url", "log")
    for column in table.columns:
        column.overflow = "fold"
    for role in run_status.roles:
        where = role.process if not role.host or role.host in role.process else f"{role.process} on {role.host}"
        age = duration(time.time() - role.changed_at)
        restarts = str(role.num_restarts)
        table.add_row(f"{role.role}-{role.index}", role.state, age, restarts, where, role.url, role.log)
    return Console().print(table)


def stop(run: Run) -> None:
    """Have a run save a checkpoint and leave, as Ctrl-C in its terminal would; `--resume` goes on with it.

    [bold]Example:[/]  ludus stop runs/guess
    """
    run_status = _status_of(run)
    if run_status is None:
        job = job_of(run)
        if job is None or job_state(job) is None:
            raise UserError(f"{_without_head(run)}; there is nothing to stop")
        cancel_job(job)
        return say(f"job {job} waited, and was taken out of the queue")
    head = run_status.head
    if head.host == socket.gethostname():
        if not _is_alive(head.pid):
            raise UserError(f"the head, pid {head.pid}, is gone already; go on with --resume")
        os.kill(head.pid, signal.SIGINT)
    elif head.scheduler == "slurm" and head.job is not None:
        interrupt_job(head.job, run / NAME)
    elif head.url:
        _send(head, "POST", "/stop")
    else:
        raise UserError(f"the head runs on {head.host}, and has no other process; stop it there")
    return say("asked to save a checkpoint and leave")


def _status_of(run: Path) -> RunStatus | None:
    if not run.is_dir():
        near = sorted(path.parent.name for path in run.parent.glob("*/config.yaml"))
        raise UserError(f"there is no run {str(run)!r}" + (f"; runs beside it: {', '.join(near)}" if near else ""))
    return read_status(run)


def _without_head(run: Path) -> str:
    job = job_of(run)
    state = None if job is None else job_state(job)
    if state is not None:
        return f"{run} was submitted as job {job}, which is {state}; its head has not begun"
    return f"{run} has {'ended' if (run / 'summary.json').exists() else 'no process'}"


def _life(head: HeadView) -> str:
    if head.host == socket.gethostname():
        return "runs" if _is_alive(head.pid) else "is gone; go on with --resume"
    if not head.url:
        return f"cannot be asked from {socket.gethostname()}"
    try:
        _send(head, "GET", "/roles")
    except BackendError:
        return "does not answer"
    return "runs"


def _is_alive(pid: int) -> bool:
    try:
        with suppress(PermissionError):  # somebody else's
            os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _send(head: HeadView, method: str, path: str) -> None:
    headers = {"authorization": f"Bearer {head.key}"}
    try:
        response = httpx.request(method, head.url + path, headers=headers, timeout=_TIMEOUT_S, trust_env=False)
        response.raise_for_status()
    except httpx.HTTPError as error:
        raise BackendError(f"the head at {head.url} does not answer: {error or type(error).__name__}") from error
