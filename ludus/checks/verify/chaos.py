"""Checks that a run survives random faults of its processes (kills, stops, lost network, full disk) without a trace.

Knows: processes and faults, run folders.  Knows not: what happens inside a run.
The run is `ludus train` with an engine server, two rollout workers and a trainer of two ranks, each a process. When its
head ends, it is restarted with --resume, as a supervisor would.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ludus.checks.verify.faults import FAULTS, Clock, descendants
from ludus.checks.verify.training import Gate, Training, digest, trained_steps, write_run
from ludus.checks.verify.verdict import MODEL, OnDone, Verdict, ignore
from ludus.errors import BackendError, UserError
from ludus.models.resolve import resolve_model
from ludus.processes.program import PROGRAM
from ludus.runs.codec import encode_episode
from ludus.runs.folder import read_metrics, read_summary
from ludus.runs.store import RunStore

_LONGEST_S: Mapping[str, float] = {"stop": 12.0, "cut": 3.0, "disk": 3.0, "clock": 3.0}
"""Longest duration of each fault. A stopped process is given up after eight seconds; one without network or disk soon
fails."""
_MOST_STARTS_WITHOUT_STEP = 8
"""The check fails after this many starts of the head without a new step; several are normal, as faults undo steps."""
_STANDS_STILL_S = 1800.0
"""The check fails when a head runs this long without a new step. On a busy machine a run needs minutes to start, and to
restart its processes."""
_AGAIN_S = 0.2
_POLL_S = 0.1
_PHASE = "rollout"
_LEARNED = ("rollout/reward", "rollout/reward_std", "train/grad_norm")
_ROLES = ("role", "engine")
"""First words of the commands of Ludus that are processes of a run; the processes of agents are not counted."""


@dataclass(frozen=True, slots=True)
class ChaosResult(Verdict):
    model: str
    seed: int
    steps: int
    kills: int
    """Number of faults of processes of the run, of any kind."""
    kinds: Mapping[str, int]
    """Number of faults by kind."""
    victims: Mapping[str, int]
    """Number of faults by process."""
    starts: int
    """Starts of the run's head, including the first."""
    tokens_lost: int
    """Tokens that were recorded when a head had ended, but are not in the record at the end."""
    twice: int
    """Episodes that were trained on in two steps."""
    unbalanced: int
    """Tokens by which the ledger of the run does not balance."""
    weights_equal: bool
    """Whether model and trainer are equal, to the last bit, to those of an undisturbed run."""
    first_difference: str | None
    """The first step with other rewards or metrics than in that run. None: there is none."""
    kept: str | None
    """The folder with both runs and their output, to investigate a failure. None: the check has passed."""
    faults: Sequence[Mapping[str, object]] = field(repr=False)

    @property
    def ok(self) -> bool:
        return self.tokens_lost == self.twice == self.unbalanced == 0 and self.weights_equal

    @property
    def details(self) -> Sequence[Mapping[str, object]]:
        return self.faults


class PatientAgent:
    """Makes two requests, and retries failed ones, as SDKs do; the reward is for different letters. Waits while its
    gate is closed."""

    def __init__(self, gates: str) -> None:
        self._gate = Gate(Path(gates), _PHASE)

    async def run(self, data: Mapping[str, Any], *, base_url: str, http_client: Any) -> dict[str, float]:
        while self._gate.holds():  # noqa: ASYNC110 -- another process opens it
            await asyncio.sleep(_POLL_S)
        messages = [{"role": "user", "content": data["question"]}]
        rewards = {}
        for number, follow_up in enumerate(("And why?", "")):
            answer = await self._ask(http_client, base_url, messages, key=str(number))
            text = answer["choices"][0]["message"]["content"] or ""
            rewards[answer["id"]] = len(set(text)) / 10.0
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": follow_up}]
        return rewards

    async def _ask(self, http_client: Any, base_url: str, messages: Sequence[Mapping[str, str]], *, key: str) -> Any:
        library: Any = importlib.import_module(type(http_client).__module__.partition(".")[0])  # httpx, or httpx2
        while True:
            with suppress(library.TransportError):
                body = {"messages": messages}
                answer = await http_client.post(
                    f"{base_url}/chat/completions", json=body, headers={"idempotency-key": key}
                )
                if not answer.is_server_error:
                    return answer.raise_for_status().json()
            await asyncio.sleep(_AGAIN_S)


def verify_chaos(*, kills: int = 5, model: str = MODEL, seed: int = 0, on_done: OnDone = ignore) -> ChaosResult:
    """Does a run lose anything when its processes are killed and stopped?

    A run with an engine server, two workers and two ranks is disturbed at
    random moments: any of its processes is killed, told to end, stopped
    for a while, cut off from the network or denied its disk, or the clock
    of all of them jumps. Where the head ends, the run is resumed. No
    recorded token may be lost, nothing trained on twice, and the weights
    must be those of a run left alone. Needs Linux and a C++ compiler.

    Example:  ludus verify chaos --kills 5 --seed 1 --json

    Raises BackendError if the run cannot be brought to its end, UserError on another system than Linux.
    """
    if sys.platform != "linux":
        raise UserError(
            f"faults are injected with system calls of Linux, and this is {sys.platform}; run the check on Linux"
        )
    with tempfile.TemporaryDirectory(prefix="ludus-chaos-") as scratch:
        folder, steps = Path(scratch), kills + 2
        write_run(folder, resolve_model(model).resolve(), seed, steps, _placed(folder))
        Training(folder, "alone").finish()
        run = _Disturbed(folder, random.Random(seed), _moments(kills, steps, seed), on_done)
        run.play()
        result = ChaosResult(
            model=model,
            seed=seed,
            steps=steps,
            kills=len(run.faults),
            kinds=dict(Counter(str(each["kind"]) for each in run.faults)),
            victims=dict(Counter(str(each["process"]) for each in run.faults)),
            starts=run.num_starts,
            tokens_lost=run.tokens_lost(),
            twice=run.num_twice(),
            unbalanced=_unbalanced(run.folder),
            weights_equal=digest(run.folder) == digest(folder / "runs" / "alone"),
            first_difference=_first_difference(run.folder, folder / "runs" / "alone"),
            kept=None,
            faults=run.faults,
        )
        return result if result.ok else replace(result, kept=_keep(folder))


def _placed(folder: Path) -> dict[str, Any]:
    """Settings for a run whose engine, workers and second rank are separate processes."""
    return {
        "workflow": f"{__name__}:{PatientAgent.__name__}",
        "workflow_kwargs": {"gates": str(folder)},
        "engine": {"kind": "server"},
        "trainer": {"ranks": 2, "optimizer": {"lr": 1e-4}},
        "rollout": {
            "max_head_offpolicyness": 0,
            "episode_timeout_s": None,  # an episode that waits for a lost process must not be retried with another seed
            "agent": {"mode": "subproc", "workers": 2, "subproc_max_workers": 2},
        },
        "scheduler": {"max_restarts": 1000},
    }


def _moments(kills: int, steps: int, seed: int) -> list[int]:
    """The step after which each fault occurs, in order; none after the last steps, so that all of them do occur."""
    rng = random.Random(f"moments {seed}")
    return sorted(rng.randrange(steps - 1) for _ in range(kills))


class _Disturbed:
    """The run that is disturbed."""

    def __init__(self, root: Path, rng: random.Random, moments: Sequence[int], on_done: OnDone) -> None:
        self._root = root
        self._rng = rng
        self._clock = Clock(root, rng)
        self._faults = {**FAULTS, "clock": self._clock.jump}
        self._moments = list(moments)
        self._kinds = [kind for _ in moments for kind in rng.sample(sorted(self._faults), len(self._faults))]
        """Shuffled, so that each kind occurs once before any is repeated."""
        self._gate = Gate(root, _PHASE)
        self._total = len(moments)
        self._on_done = on_done
        self.folder = root / "runs" / "disturbed"
        self.faults: list[Mapping[str, object]] = []
        self.num_starts = 0
        self._seen: Counter[bytes] = Counter()
        """Encoded episodes that were recorded when a head had ended, with their largest counts."""
        self._tokens: dict[bytes, int] = {}

    def play(self) -> None:
        """Start the run, again and again, until it ends by itself."""
        num_in_vain, steps = 0, 0
        while True:
            goes_on = ("--resume",) if self.folder.is_dir() else ()
            training = Training(self._root, "disturbed", *goes_on, environment=self._clock.environment)
            self.num_starts += 1
            try:
                self._disturb_until_end(training)
            finally:
                training.kill()
            self._look()
            if training.popen.returncode == 0 and read_summary(self.folder) is not None:
                return
            now = trained_steps(self.folder)
            num_in_vain = 0 if now > steps else num_in_vain + 1
            steps = max(steps, now)
            if num_in_vain > _MOST_STARTS_WITHOUT_STEP + len(self._moments):
                raise training.failed("the run does not come to its end")

    def tokens_lost(self) -> int:
        with RunStore.open(self.folder) as store:
            held = Counter(map(encode_episode, store.episodes()))
        return sum(self._tokens[record] * count for record, count in (self._seen - held).items())

    def num_twice(self) -> int:
        """Number of episodes that were given to two steps, by the batches in the record."""
        given: Counter[str] = Counter()
        with RunStore.open(self.folder) as store:
            for step in range(1, trained_steps(self.folder) + 1):
                batch = store.batch(step) or {"groups": []}
                given.update(episode for group in batch["groups"] for episode in group["episodes"])
        return sum(count > 1 for count in given.values())

    def _disturb_until_end(self, training: Training) -> None:
        """Cause the due faults until the head has ended. Raises BackendError if it makes no progress."""
        step, since = trained_steps(self.folder), time.monotonic()
        while training.popen.poll() is None:
            if (now := trained_steps(self.folder)) != step:
                step, since = now, time.monotonic()
            if time.monotonic() - since > _STANDS_STILL_S:
                raise training.failed(f"the run has come no further than step {step} for {_STANDS_STILL_S:.0f} s")
            if self._moments and step >= self._moments[0]:
                self._disturb(training)
            time.sleep(_POLL_S)

    def _disturb(self, training: Training) -> None:
        """Cause a fault of a process of the run within the next second. Meanwhile the run is held at the next step, as
        a small run would otherwise be over."""
        with self._paced(self._moments[0]):
            time.sleep(self._rng.random())
            # no fault if the process has ended by itself meanwhile; the next attempt chooses another
            with suppress(ProcessLookupError):
                if training.popen.poll() is None:
                    self._happen(training.popen.pid)
                    self._moments.pop(0)

    def _happen(self, head: int) -> None:
        """Cause a fault of a random process. Raises ProcessLookupError if the process has ended."""
        name, pid = self._rng.choice(sorted(_processes(head), key=lambda each: each[0]))
        kind = self._kinds[0]
        for_s = self._rng.uniform(0.2, _LONGEST_S.get(kind, 0.2))
        try:
            self._faults[kind](pid, for_s)
        except PermissionError:  # a container may forbid access to descriptors of other processes
            kind = "stop"
            self._faults[kind](pid, for_s)
        self._kinds.pop(0)
        name = "all" if kind == "clock" else name
        about = {"kind": kind, "process": name, "for_s": round(for_s, 1) if kind in _LONGEST_S else None}
        self.faults.append({**about, "after_step": trained_steps(self.folder)})
        self._on_done(len(self.faults), self._total)

    @contextmanager
    def _paced(self, due: int) -> Iterator[None]:
        over = threading.Event()

        def pace() -> None:
            while not over.wait(_POLL_S):
                if trained_steps(self.folder) > due:
                    self._gate.close()

        pacing = threading.Thread(target=pace, name="pace", daemon=True)
        pacing.start()
        try:
            yield
        finally:
            over.set()
            pacing.join()
            self._gate.open()

    def _look(self) -> None:
        """Remember the recorded episodes."""
        if not (self.folder / "writer.lock").exists():
            return
        with RunStore.open(self.folder) as store:
            now: Counter[bytes] = Counter()
            for episode in store.episodes():
                record = encode_episode(episode)
                now[record] += 1
                self._tokens[record] = episode.session.num_sampled_tokens
        self._seen |= now


def _processes(head: int) -> list[tuple[str, int]]:
    """Names and pids of the head and its processes."""
    found = [("head", head)]
    for pid in descendants(head):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            name = _name_of(words)
            if name is not None:
                found.append((name, pid))
    return found


def _name_of(words: Sequence[str]) -> str | None:
    """The name of a process, from its command line. None: it is no process of the run, or not yet."""
    if words[: len(PROGRAM)] != [*PROGRAM] or len(words) <= len(PROGRAM) or words[len(PROGRAM)] not in _ROLES:
        return None
    name = words[len(PROGRAM) + 1]
    return "engine's server" if words[len(PROGRAM)] == "engine" else name


def _first_difference(disturbed: Path, alone: Path) -> str | None:
    # for a step that was trained again, the last values; lines lost to a full disk are missing
    steps = [dict(read_metrics(run).rows) for run in (disturbed, alone)]
    for step in sorted(steps[0].keys() & steps[1].keys()):
        found, expected = ({name: each[step].get(name) for name in _LEARNED} for each in steps)
        if found != expected:
            return f"step {step}: {found}, alone {expected}"
    return None


def _keep(folder: Path) -> str:
    kept = tempfile.mkdtemp(prefix="ludus-chaos-kept-")
    shutil.copytree(folder, kept, dirs_exist_ok=True)
    return kept


def _unbalanced(run: Path) -> int:
    ledger = (read_summary(run) or {}).get("ledger")
    if ledger is None:
        raise BackendError("the disturbed run has no summary")
    return abs(int(ledger["sampled"]) - int(ledger["trained"]) - sum(map(int, ledger["masked"].values())))
