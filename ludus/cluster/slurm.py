"""Starts roles as steps of a Slurm job, and submits the job itself if there is none yet.

Knows: sbatch, srun, scontrol, squeue, scancel.  Knows not: what the processes do.
Rules: the batch script runs the head; each process of a role is one `srun` on its own part of the job's resources, and
takes nothing that it did not ask for, so that no step waits for another. The script is made from `job.sbatch.jinja`,
and stored beside the run; clusters with other requirements use another template.
"""

from __future__ import annotations

import logging
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from ludus.cluster.base import Launcher, Role
from ludus.cluster.local import LocalProcess
from ludus.errors import BackendError, ConfigError, UserError
from ludus.processes.files import OWNER_ALONE
from ludus.processes.placement import ResourceSettings, SlurmScheduler

logger = logging.getLogger(__name__)

JOB_VARIABLE = "SLURM_JOB_ID"
_TEMPLATE = Path(__file__).with_name("job.sbatch.jinja")
_COMMAND_S = 60.0  # a busy controller answers within seconds
# srun forwards TERM to its task; only two INT within a second end the step.
_SCANCEL_S = 10.0
_SIGNALLED = 128
# The step of the head's cards has only to start Python.
_HELD_S, _POLL_S = 60.0, 0.1
_HOLD = (
    "import time; from ludus.processes.cards import find_cards; "
    "print('cards:', *(card.name for card in find_cards()), flush=True); time.sleep(1e9)"
)
_HELD = re.compile(r"^cards: (.+)$", re.MULTILINE)
_JOB_FILE = "roles/job.id"
_JOB_ID = re.compile(r"[0-9]+([_+][0-9]+)?")
"""Also matches job arrays and heterogeneous jobs."""


class SlurmStep(LocalProcess):
    """One `srun` in this job."""

    @property
    def id(self) -> str:
        return f"srun {self.pid} of job {os.environ.get(JOB_VARIABLE, '?')}"

    def poll(self) -> int | None:
        status = super().poll()
        # srun exits with its task's status, which is 128 + number for a signal.
        return status if status is None or status <= _SIGNALLED else _SIGNALLED - status

    def stop(self, grace_s: float) -> None:
        """Send TERM, which srun forwards to its task; after `grace_s` srun is killed, and Slurm ends the step."""
        super().stop(max(grace_s, _SCANCEL_S))


class SlurmLauncher(Launcher):
    """Starts steps of the job that this process belongs to."""

    def __init__(self, folder: Path, *, head: ResourceSettings | None = None, head_card: str | None = None) -> None:
        """head: resources of the job for this process, whose cards no step gets. None: it has no cards.
        head_card: the card that this process computes on, as in CUDA_VISIBLE_DEVICES. None: it uses none.

        Raises UserError outside of a job.
        """
        super().__init__(folder)
        if JOB_VARIABLE not in os.environ:
            raise UserError(
                "scheduler.type=slurm starts its roles in the steps of a job, and this process is in none; "
                "`ludus train` submits one by itself, with the agent in the configuration"
            )
        _need("srun")
        self._lock = threading.Lock()
        """Held while the head's cards are looked at."""
        self._head_card = head_card
        self._head_cards: SlurmStep | None = None
        """A step that only reserves the head's cards, because the head is no step itself. None: it has no cards."""
        if head is not None and head.gpus:
            words = [*_holding_step(head), sys.executable, "-P", "-c", _HOLD]
            self._head_cards = SlurmStep(words, self._inherited(), folder / "roles" / "head-cards.log")

    def _begin(self, role: Role, index: int, env: Mapping[str, str], log: Path) -> SlurmStep:
        with self._lock:
            if role.settings.gpus and self._head_cards is not None and self._head_card is not None:
                self._check_held(self._head_cards, self._head_card)
        return SlurmStep([*step_command(role, index), *role.argv(index)], {**self._inherited(), **env}, log)

    def close(self) -> None:
        super().close()
        if self._head_cards is not None:
            self._head_cards.stop(0)

    def _check_held(self, step: SlurmStep, head_card: str) -> None:
        """Waits until the head's cards are reserved, once. Raises ConfigError if they are others than the one that it
        computes on, BackendError if they cannot be had."""
        give_up_at = time.monotonic() + _HELD_S
        while (held := _HELD.search(step.log.read_text(errors="replace"))) is None:
            if step.poll() is not None:
                raise BackendError(f"Slurm does not reserve the cards of scheduler.head.gpus: {step.tail(5)}")
            if time.monotonic() > give_up_at:
                logger.warning("the step that reserves the head's cards has not begun; Slurm says: %s", step.tail(5))
                break
            time.sleep(_POLL_S)
        names = () if held is None else held[1].split()
        if names and head_card not in names and all(_is_uuid(name) for name in (*names, head_card)):
            raise ConfigError(
                f"the head computes on the card {head_card}, and Slurm reserves {', '.join(names)} for it, so that a "
                "role would get the head's: set model.device to the number of the reserved one, such as cuda:1"
            )
        self._head_card = None

    def _inherited(self) -> dict[str, str]:
        """This environment without SLURM's options of the whole job, which srun would apply to the step."""
        return {name: value for name, value in os.environ.items() if name not in _OF_THE_JOB}


_OF_THE_JOB = frozenset(
    f"SLURM_{name}"
    for name in (
        *("CPUS_PER_TASK", "CPUS_PER_GPU", "TRES_PER_TASK", "NTASKS_PER_NODE", "NTASKS", "NTASKS_PER_GPU", "NNODES"),
        *("GPUS", "GPUS_PER_NODE", "GPUS_PER_TASK", "GPUS_PER_SOCKET", "GRES", "MEM_PER_NODE", "MEM_PER_CPU"),
        *("MEM_PER_GPU", "EXACT", "EXCLUSIVE", "OVERLAP", "WHOLE", "GPU_BIND", "TRES_BIND", "CPU_BIND", "MEM_BIND"),
        *("DISTRIBUTION", "CORE_SPEC", "THREAD_SPEC", "THREADS_PER_CORE"),
    )
)


def _is_uuid(name: str) -> bool:
    return name.startswith(("GPU-", "MIG-"))


def _holding_step(head: ResourceSettings) -> list[str]:
    """Arguments of the step that reserves the head's cards on its node. The first step of a job gets the first cards,
    and those are the ones that the head uses."""
    words = ["srun", "--job-name=head-cards", "--nodes=1", "--ntasks=1", "--exact", "--cpus-per-task=1", "--mem=0"]
    return [
        *words,
        "--unbuffered",
        f"--nodelist={os.environ.get('SLURMD_NODENAME') or os.uname().nodename}",
        f"--gpus={math.ceil(head.gpus)}",
    ]


def step_command(role: Role, index: int) -> list[str]:
    """The `srun` arguments that run a process's command as a step with its own resources."""
    resources = role.settings
    words = ["srun", f"--job-name={role.name}-{index}", "--nodes=1", "--ntasks=1", "--exact", "--unbuffered"]
    words += [
        f"--cpus-per-task={math.ceil(resources.num_cpus)}",
        "--export=ALL",
        "--kill-on-bad-exit=1",
        "--input=none",
    ]
    # memory of 0 is all of the job's, shared with the other steps
    words += [f"--mem={math.ceil(resources.memory_gb)}G"] if resources.memory_gb is not None else ["--mem=0"]
    if resources.gpus:
        words.append(f"--gpus={math.ceil(resources.gpus)}")
    else:  # a step that does not say so gets all cards of the job, and every later step would wait for it
        words.append("--overlap" if role.cards else "--gres=none")
    return words


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job to submit."""

    name: str
    run: Path
    """The run's folder."""
    command: Sequence[str]
    """The head's command."""
    roles: Sequence[tuple[ResourceSettings, int]]
    """Resources of one process, and number of processes, of each role; the head first."""
    settings: SlurmScheduler

    def script(self) -> str:
        """The batch script. Raises UserError if the template cannot be filled."""
        slurm = self.settings.slurm
        path = _TEMPLATE if slurm.template is None else Path(slurm.template)
        try:
            template = jinja2.Template(path.read_text(encoding="utf-8"), undefined=jinja2.StrictUndefined)
        except OSError as error:
            raise UserError(f"cannot read scheduler.slurm.template={str(path)!r}: {error.strerror}") from None
        except jinja2.TemplateError as error:
            raise UserError(f"{path} is not a valid Jinja template: {error}") from None
        values = {
            "name": self.name,
            "nodes": slurm.nodes,
            "cpus_per_node": self._per_node("num_cpus"),
            "gpus_per_node": self._per_node("gpus"),
            "memory_gb_per_node": self._per_node("memory_gb"),
            "log": str(self.run.resolve() / "roles" / "head.log"),
            "warning_s": slurm.warning_s,
            "options": slurm.options,
            "folder": shlex.quote(str(Path.cwd())),
            "env": {name: shlex.quote(value) for name, value in slurm.env.items()},
            "run": shlex.quote(str(self.run.resolve())),
            "command": shlex.join(self.command),
        }
        try:
            script: str = template.render(values)
        except jinja2.TemplateError as error:
            raise UserError(f"{path} cannot be filled: {error}; there are {', '.join(sorted(values))}") from None
        return script

    def _per_node(self, name: str) -> int:
        return per_node(
            [math.ceil(getattr(resources, name) or 0) for resources, count in self.roles for _ in range(count)],
            self.settings.slurm.nodes,
        )


def per_node(sizes: Sequence[int], num_nodes: int) -> int:
    """The least that every node needs of a resource, so that a process finds a node with its part free, wherever Slurm
    has put the others.

    sizes: of each process, which are on one node each.
    """
    total, kinds, sums = sum(sizes), {size for size in sizes if size}, {0}
    for size in sizes:
        sums |= {each + size for each in sums}
    taken = [*sorted(sums), total + 1]
    """What some of the processes can take together, and more than all do."""

    def is_enough(amount: int) -> bool:
        # if a process finds no node, each has less than its size left, and the others take all that is used
        return all(num_nodes * taken[bisect_right(taken, amount - size)] > total - size for size in kinds)

    return next(amount for amount in range(max(kinds, default=0), total + 1) if is_enough(amount))


def submit(job: SlurmJob) -> str:
    """Submit the job; returns its id. Its script is stored beside the run. Raises UserError if Slurm refuses it."""
    script = job.run / "roles" / "job.sbatch"
    script.parent.mkdir(mode=OWNER_ALONE, parents=True, exist_ok=True)
    script.write_text(job.script(), encoding="utf-8")
    job_id = _run("sbatch", "--parsable", str(script)).strip().partition(";")[0]
    (job.run / _JOB_FILE).write_text(job_id + "\n", encoding="utf-8")
    return job_id


def job_of(run: Path) -> str | None:
    """Id of the job that a run was last submitted as. None: it never was. Raises UserError if the stored id is
    invalid."""
    path = run / _JOB_FILE
    return _number(path.read_bytes().decode(errors="replace").strip(), path) if path.is_file() else None


def job_state(job_id: str) -> str | None:
    """Slurm's state of a job, such as PENDING or RUNNING. None: the job is neither queued nor running."""
    return _run("squeue", "--noheader", "--format=%T", f"--jobs={job_id}", may_fail=True).strip() or None


def interrupt_job(job_id: str, where: Path) -> None:
    """Make the head of a job save and end. Raises UserError if Slurm refuses, or `job_id`, which comes from the run's
    status, is no job id."""
    _run("scancel", "--signal=TERM", "--batch", _number(job_id, where))


def cancel_job(job_id: str) -> None:
    """Remove a queued job. Raises UserError if Slurm refuses."""
    _run("scancel", job_id)


def _number(job_id: str, where: Path) -> str:
    """The job id, checked: one from another user's run must not be passed to Slurm's programs as an option."""
    if not _JOB_ID.fullmatch(job_id):
        raise UserError(f"{where} is damaged: {job_id!r} is no number of a job; ask squeue, and end the job by scancel")
    return job_id


def _run(*words: str, may_fail: bool = False) -> str:
    """The output of a Slurm command. Raises UserError if it fails, unless `may_fail`."""
    _need(words[0])
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    except subprocess.TimeoutExpired:
        raise BackendError(f"{words[0]} did not answer within {_COMMAND_S:.0f} s; is Slurm's controller up?") from None
    if done.returncode and not may_fail:
        raise UserError(f"`{shlex.join(words)}` was refused: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def _need(program: str) -> None:
    if shutil.which(program) is None:
        raise UserError(f"scheduler.type=slurm needs {program}, which is not on this machine; run it on a login node")
