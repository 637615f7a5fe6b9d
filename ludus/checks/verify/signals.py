"""Checks how a run handles signals in each of its phases: its exit code, its checkpoint, and that it can be resumed.

Knows: processes, signals, run folders.  Knows not: what happens inside a run.
The runs are `ludus train` in separate processes. Their agent and their loss wait while a gate of the check is closed; a
process that writes a folder is stopped in the middle with SIGSTOP, and signalled while it is stopped.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.checks.verify.training import HELD_S, Gate, LettersAgent, Training, digest, trained_steps, write_run
from ludus.checks.verify.verdict import MODEL, OnDone, Verdict, ignore
from ludus.errors import BackendError
from ludus.loop.checkpoint import latest_checkpoint
from ludus.loop.interrupt import END_SIGNALS
from ludus.models.resolve import resolve_model

if TYPE_CHECKING:
    from torch import Tensor

    from ludus.algorithms.base import LossInputs

PHASES = ("set-up", "rollout", "step", "checkpoint", "evaluation", "export")
_STEPS = 4
_HEARD = "saving a checkpoint, then leaving"
_POLL_S = 0.0005
"""Short, because a checkpoint of the smallest model is written in about 10 ms."""
_LEAVES_S = 60.0
"""Time limit for saving and ending: seconds on a slow disk; on a busy machine up to the duration of an undisturbed
run."""
_AT_ONCE_S = 20.0
"""Time limit for ending at once: an interpreter with torch exits within two seconds; an interrupt swallowed by a
library is repeated after five. If an undisturbed run takes longer, the machine is busy, and this limit is extended."""
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Case:
    """A signal that is sent once or twice in one phase of a run."""

    phase: str
    signal: signal.Signals
    times: int

    @property
    def name(self) -> str:
        return f"{self.phase}-{self.signal.name}-{self.times}"

    @property
    def is_at_once(self) -> bool:
        """Whether the run must end without saving. A second SIGHUP does not count, as closing a terminal sends two."""
        return self.times == 2 and self.signal != signal.SIGHUP

    @property
    def codes(self) -> Set[int]:
        """Allowed exit codes. A run that ends before the second signal has the code for the first; one that is writing
        its model counts as finished; and one that has finished no longer handles the signal, which then ends the
        process."""
        once = 0 if self.phase == "export" or self.signal == signal.SIGINT else 128 + self.signal
        codes = {once} if self.times == 1 else {once, 128 + self.signal}
        return codes | {130} if self.is_at_once else codes


CASES = tuple(Case(phase, number, times) for phase in PHASES for number in END_SIGNALS for times in (1, 2))


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended, and whether it resumed."""

    phase: str
    signal: str
    times: int
    exit_code: int
    left_after_s: float
    trained_steps: int
    saved_step: int | None
    """Step of the last checkpoint. None: there is none."""
    weights_equal: bool
    """Whether weights and trainer state after `--resume` equal those of an undisturbed run."""
    is_right: bool = field(repr=False)
    """Whether exit code, time and checkpoint are as promised."""

    @property
    def ok(self) -> bool:
        return self.is_right and self.weights_equal


@dataclass(frozen=True, slots=True)
class SignalsResult(Verdict):
    model: str
    seed: int
    runs: int
    saved: int
    """Number of cases that lost no step."""
    weights_equal: int
    """Number of cases that resumed to the weights of an undisturbed run."""
    wrong: tuple[str, ...]
    """Cases that did not end as promised, resumed to other weights, or could not be judged."""
    failures: Mapping[str, str]
    """By case, why it could not be judged: the run was not caught in the phase, or failed by itself."""
    endings: Sequence[Ending] = field(repr=False)

    @property
    def ok(self) -> bool:
        return not self.wrong

    @property
    def details(self) -> Sequence[Mapping[str, object]]:
        failed = [{"case": name, "failure": reason} for name, reason in self.failures.items()]
        return [*(asdict(ending) for ending in self.endings), *failed]


async def gated_agent(data: Mapping[str, Any], *, gates: str, base_url: str, http_client: Any) -> dict[str, float]:
    """An agent that waits while its gate is closed; training rows and held-out rows have separate gates."""
    gate = Gate(Path(gates), "evaluation" if data.get("is_held_out") else "rollout")
    while gate.holds():  # noqa: ASYNC110 -- another process opens it
        await asyncio.sleep(0.01)
    return await LettersAgent().run(data, base_url=base_url, http_client=http_client)


def gated_loss(inputs: LossInputs, *, gates: str) -> tuple[Tensor, dict[str, Tensor]]:
    """The plain policy gradient loss, which waits while its gate is closed."""
    while Gate(Path(gates), "step").holds():
        time.sleep(0.01)
    return -inputs.advantages_N * inputs.logprobs_N, {}


def verify_signals(
    *, model: str = MODEL, seed: int = 0, cases: Sequence[Case] = CASES, on_done: OnDone = ignore
) -> SignalsResult:
    """Does a run that is asked to end save, leave as promised, and go on?

    SIGINT, SIGTERM and SIGHUP reach `ludus train` once and twice in each
    phase: set-up, rollout, step, checkpoint, evaluation, export. The exit
    code and the checkpoint must be those of docs/promises.md, and a resumed
    run must end with the weights of a run left alone, to the last bit.

    Example:  ludus verify signals --json

    Raises BackendError if the run that is left alone fails.
    """
    with tempfile.TemporaryDirectory(prefix="ludus-signals-") as scratch:
        folder = Path(scratch)
        _write_gated_run(folder, resolve_model(model).resolve(), seed)
        began_at = time.monotonic()
        Training(folder, "alone").finish()
        alone_s = time.monotonic() - began_at
        undisturbed = digest(folder / "runs" / "alone")
        _discard(folder, "alone")
        endings: dict[str, Ending] = {}
        failures: dict[str, str] = {}
        for number, case in enumerate(cases):
            on_done(number, len(cases))
            try:
                endings[case.name] = _ending(folder, case, undisturbed, alone_s)
            except BackendError as error:  # recorded as a failure; the other cases are still judged
                failures[case.name] = str(error)
            finally:
                _discard(folder, case.name)
        return SignalsResult(
            model=model,
            seed=seed,
            runs=len(endings),
            saved=sum(each.saved_step == each.trained_steps for each in endings.values()),
            weights_equal=sum(each.weights_equal for each in endings.values()),
            wrong=(*(name for name, each in endings.items() if not each.ok), *failures),
            endings=tuple(endings.values()),
            failures=failures,
        )


def _discard(folder: Path, name: str) -> None:
    """Remove a run that has been judged: with its checkpoints it is ten times its model, and there are dozens."""
    shutil.rmtree(folder / "runs" / name, ignore_errors=True)


def _write_gated_run(folder: Path, model: Path, seed: int) -> None:
    """Write the configuration of the run, its training and held-out rows, and the folder of the gates."""
    gates, held_out = folder / "gates", folder / "held-out.jsonl"
    gates.mkdir()
    held_out.write_text(json.dumps({"question": "What is held out?", "is_held_out": True}) + "\n", encoding="utf-8")
    loss = {"kind": "own", "path": f"{__name__}:{gated_loss.__name__}", "kwargs": {"gates": str(gates)}}
    gated = {
        "workflow": f"{__name__}:{gated_agent.__name__}",
        "workflow_kwargs": {"gates": str(gates)},
        "algorithm": {"loss": loss},
        "trainer": {"optimizer": {"lr": 1e-4}},
        "valid_dataset": {"path": str(held_out)},
        "eval": {"every_steps": 1},
    }
    write_run(folder, model, seed, _STEPS, gated)


def _ending(folder: Path, case: Case, undisturbed: str, alone_s: float) -> Ending:
    """The ending of a run that is signalled and then resumed. alone_s: duration of an undisturbed run."""
    run = folder / "runs" / case.name
    gate = Gate(folder / "gates", case.phase)
    training = _caught(folder, case, run, gate)
    try:
        training.popen.send_signal(case.signal)
        training.popen.send_signal(signal.SIGCONT)
        _wait(training, lambda: _HEARD in training.said)
        if case.times == 2:
            training.popen.send_signal(case.signal)
        if not case.is_at_once and case.phase == "step":  # the step is finished first, so open its gate
            gate.open()
        told_at = time.monotonic()
        code = training.popen.wait(max(_LEAVES_S, alone_s))
    except subprocess.TimeoutExpired as error:
        raise training.failed(
            f"a run that was told to end, {case.name}, has not left {error.timeout:.0f} s later"
        ) from None
    finally:
        training.kill()
        gate.open()
    left_after_s = time.monotonic() - told_at
    trained, saved = trained_steps(run), latest_checkpoint(run / "checkpoints")
    saved_step = None if saved is None else saved.progress.step
    code = code if code >= 0 else 128 - code  # as in shells
    is_late = case.is_at_once and left_after_s > max(_AT_ONCE_S, alone_s)
    may_lose = 1 if code == 130 else 0
    goes_on = ("--resume",) if run.is_dir() else ()  # without a folder there is nothing to resume
    Training(folder, case.name, *goes_on).finish()
    return Ending(
        phase=case.phase,
        signal=case.signal.name,
        times=case.times,
        exit_code=code,
        left_after_s=round(left_after_s, 2),
        trained_steps=trained,
        saved_step=saved_step,
        weights_equal=digest(run) == undisturbed,
        is_right=code in case.codes and not is_late and (saved_step or 0) >= trained - may_lose,
    )


def _caught(folder: Path, case: Case, run: Path, gate: Gate) -> Training:
    """Start a run, and hold or stop it in the phase."""
    for _ in range(_TRIES):
        training = Training(folder, case.name)
        try:
            if _is_caught(training, case.phase, run, gate):
                return training
        except BaseException:
            training.kill()
            raise
        training.finish()  # the phase was over too quickly
        shutil.rmtree(run)
    raise training.failed(f"no run could be caught in the phase {case.phase!r}; try a larger model (--model)")


def _is_caught(training: Training, phase: str, run: Path, gate: Gate) -> bool:
    """Whether the run is held in the phase. False: it ended before."""
    if phase == "set-up":
        return _wait(training, lambda: "loading" in training.said)
    if phase in ("checkpoint", "export"):
        drafts = {"checkpoint": "checkpoints/.draft-*", "export": ".draft-*"}[phase]
        while _wait(training, lambda: any(run.glob(drafts))):
            training.popen.send_signal(signal.SIGSTOP)
            if any(run.glob(drafts)):
                return True
            training.popen.send_signal(signal.SIGCONT)
        return False
    if not _wait(training, lambda: trained_steps(run) > 0):
        return False
    gate.close()
    return _wait(training, gate.reached.exists)


def _wait(training: Training, is_so: Callable[[], bool]) -> bool:
    """Wait until `is_so` holds. False: the process has ended without that."""
    give_up_at = time.monotonic() + HELD_S
    while not is_so():
        if training.popen.poll() is not None:
            return is_so()
        if time.monotonic() > give_up_at:
            raise training.failed("a run of the check hangs")
        time.sleep(_POLL_S)
    return True
