"""Starts, watches, restarts and finally stops the processes of a run.

Knows: launchers, the registry, how often processes are restarted.  Knows not: what the roles do.
Invariants: a process that ended or fell silent is noticed within 10 s; what remains of it is ended before it is
restarted; a process that cannot be kept alive ends the run, with its last lines in the message.

    starting ──ready──▶ ready ──exit, silence──▶ lost ──restarts left──▶ starting
        └──exit──▶ the run ends                    └──none left──▶ the run ends
"""

from __future__ import annotations

import asyncio
import logging
import textwrap
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ludus.cluster.base import ATTEMPT_VARIABLE, KEY_VARIABLE, Launcher, Role, RoleProcess
from ludus.cluster.clock import AwakeClock
from ludus.cluster.registry import Name, Registered, Registry
from ludus.cluster.status import RoleView, State
from ludus.errors import BackendError, LudusError, UserError
from ludus.processes.gather import first_of

logger = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

POLL_S = 0.25
SILENCE_S = 8.0  # five missed heartbeats
START_S = 900.0  # enough to read a large model from a network disk and compile it
GRACE_S = 10.0
NUM_LAST_LINES = 20
# Only recent restarts count against the limit, because in a run of weeks every node may fail once.
RESTARTS_WITHIN_S = 3600.0
_EXIT_USER = 2  # exit status of the command line for errors in settings or files

OnJoin = Callable[[Registered], Coroutine[Any, Any, None]]
OnLost = Callable[[str, int], Awaitable[None]]
OnChange = Callable[[Sequence[RoleView]], None]


@dataclass(frozen=True, slots=True)
class SupervisionPolicy:
    """The task of a role's processes, and how they are restarted."""

    task: Mapping[str, Any] = field(default_factory=dict)
    """Sent to each process."""
    on_join: OnJoin | None = None
    """Called when a process is ready again after it was lost. None: nothing is called."""
    on_lost: OnLost | None = None
    max_restarts: int = 0
    """Limit on the restarts of each process within `restarts_within_s`."""
    restarts_within_s: float = RESTARTS_WITHIN_S
    start_timeout_s: float = START_S


@dataclass(slots=True)
class _SupervisedRole:
    role: Role
    index: int
    policy: SupervisionPolicy
    process: RoleProcess
    started_at: float
    """Time on the supervisor's clock."""
    attempt: int = 0
    restarted_at: Sequence[float] = ()
    """Times, on the same clock, of restarts that still count."""
    was_ready: bool = False
    """Whether any start of it was ready."""
    state: State = "starting"
    registered: Registered | None = None
    changed_at: float = field(default_factory=time.time)
    joining: asyncio.Future[None] | None = None
    """The call of `on_join` for a restarted process. None: there is none."""
    replacing: asyncio.Task[None] | None = None
    """The task that replaces a lost process. None: it is not lost."""

    def failed_to_join(self) -> BackendError | None:
        """The error of `on_join` if it is the process's fault. None: no error so far. Raises other errors."""
        if self.joining is None or not self.joining.done():
            return None
        error = self.joining.exception()
        if error is None or isinstance(error, BackendError):
            return error
        raise error

    @property
    def name(self) -> str:
        return f"{self.role.name}-{self.index}"

    def set_state(self, state: State) -> None:
        self.state, self.changed_at = state, time.time()

    def view(self) -> RoleView:
        known, process = self.registered, self.process
        host, url = ("", "") if known is None else (known.host, known.url)
        reached = (self.role.name, self.index, self.state, process.id, host, url)
        return RoleView(*reached, self.attempt, str(process.log), self.changed_at)


class Supervisor:
    """Keeps the processes of a run alive. Use as an async context manager, on one event loop."""

    def __init__(self, launcher: Launcher, registry: Registry, *, on_change: OnChange = lambda _: None) -> None:
        """on_change: called with the status of all processes whenever one of them changes."""
        self._launcher = launcher
        self._registry = registry
        self._on_change = on_change
        self._roles: dict[Name, _SupervisedRole] = {}
        self._clock = AwakeClock()
        self._watching: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[LudusError] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        ready = sum(supervised.state == "ready" for supervised in self._roles.values())
        return f"Supervisor({self._launcher!r}, processes={len(self._roles)}, ready={ready})"

    async def __aenter__(self) -> Supervisor:
        self._watching = asyncio.create_task(self._watch(), name="ludus-supervisor")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._watching is not None, "it was entered"
        joining = [supervised.joining for supervised in self._roles.values() if supervised.joining is not None]
        for task in (self._watching, *joining):
            task.cancel()
        await asyncio.gather(self._watching, *joining, return_exceptions=True)
        for role in {name for name, _ in self._roles}:
            await self.stop(role)
        await asyncio.to_thread(self._launcher.close)

    @property
    def failure(self) -> LudusError | None:
        """The error that ends the run. None: there is none."""
        return self._failed.result() if self._failed.done() else None

    def views(self) -> Sequence[RoleView]:
        """The status of all processes."""
        return [supervised.view() for _, supervised in sorted(self._roles.items())]

    async def failed(self) -> LudusError:
        """Wait for the error that ends the run."""
        return await asyncio.shield(self._failed)

    async def start(self, role: Role, policy: SupervisionPolicy) -> tuple[Registered, ...]:
        """The processes of the role, once all of them are ready.

        Raises UserError or BackendError, with the last lines of the process, if one of them ends before that.
        """
        await self.begin(role, policy)
        return await self.ready(role.name)

    async def begin(self, role: Role, policy: SupervisionPolicy) -> None:
        """Start the role's processes without waiting for them."""
        for index in range(role.count):
            await self._place(role, index, policy)

    async def ready(self, name: str) -> tuple[Registered, ...]:
        """The processes of a role that was begun, once all of them are ready. Raises as `start`."""
        return await self.unless_failed(self._all_joined(name))

    async def unless_failed(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """What `work` returns. Raises the error that ends the run as soon as there is one."""

        async def failing() -> ResultT:
            raise await self.failed()

        return await first_of(work, failing())

    async def stop(self, name: str, grace_s: float = GRACE_S) -> None:
        """End the processes of a role. Does nothing if there are none."""
        replacing = [
            each.replacing for key, each in self._roles.items() if key[0] == name and each.replacing is not None
        ]
        for task in replacing:
            task.cancel()
        await asyncio.gather(*replacing, return_exceptions=True)
        roles = [self._roles.pop(key) for key in list(self._roles) if key[0] == name]
        await asyncio.gather(*(asyncio.to_thread(supervised.process.stop, grace_s) for supervised in roles))
        for supervised in roles:
            self._registry.forget(supervised.role.name, supervised.index)
            supervised.set_state("ended")
        self._report()

    # ---- inside

    async def _all_joined(self, name: str) -> tuple[Registered, ...]:
        indices = sorted(index for role, index in self._roles if role == name)
        while True:
            await asyncio.gather(*(self._registry.wait(name, index) for index in indices))
            # While waiting for the others, one that was ready may have been lost and restarted.
            found = (self._registry.find(name, index) for index in indices)
            ready = tuple(each for each in found if each is not None)
            if len(ready) == len(indices):
                return ready

    async def _place(
        self,
        role: Role,
        index: int,
        policy: SupervisionPolicy,
        before: _SupervisedRole | None = None,
        restarted_at: Sequence[float] = (),
    ) -> None:
        attempt, was_ready = (0, False) if before is None else (before.attempt + 1, before.was_ready)
        key = self._registry.expect(role.name, index, attempt, policy.task)
        env = {KEY_VARIABLE: key, ATTEMPT_VARIABLE: str(attempt)}
        starting = asyncio.ensure_future(asyncio.to_thread(self._launcher.start, role, index, env))
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:  # the thread continues, and the process that it starts must not outlive the run
            started = await starting
            await asyncio.to_thread(started.stop, 0)
            raise
        self._roles[role.name, index] = _SupervisedRole(
            role,
            index,
            policy,
            process,
            self._clock.now(),
            attempt=attempt,
            was_ready=was_ready,
            restarted_at=restarted_at,
        )
        logger.info("role.started role=%s-%d attempt=%d process=%s", role.name, index, attempt, process.id)
        self._report()

    async def _watch(self) -> None:
        try:
            while not self._failed.done():
                await asyncio.sleep(POLL_S)
                roles = [each for each in self._roles.values() if each.replacing is None]
                statuses = await asyncio.to_thread(lambda polled: [each.process.poll() for each in polled], roles)
                for supervised, status in zip(roles, statuses, strict=True):
                    self._check(supervised, status)
        except Exception as error:  # the boundary of a task: after any error the run is no longer watched
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Record the error that ends the run; only the first one counts."""
        if not isinstance(error, LudusError):
            logger.exception("the processes of the run are not watched any more", exc_info=error)
            error = BackendError(f"the run's processes cannot be watched: {error}")
        if not self._failed.done():
            self._failed.set_result(error)

    def _check(self, supervised: _SupervisedRole, status: int | None) -> None:
        """Check one process, and replace it if it was lost. Raises the error that ends the run."""
        if self._roles.get((supervised.role.name, supervised.index)) is not supervised:
            return  # it was stopped meanwhile
        if supervised.state == "starting":
            self._check_for_start(supervised)  # first, as it may have been ready before it ended
        most_s = supervised.policy.start_timeout_s
        if status is not None:
            how = f"exit status {status}" if status >= 0 else f"signal {-status}"
            what = f"ended with {how}"
        elif (useless := supervised.failed_to_join()) is not None:
            what = f"cannot be used: {useless}"
        elif supervised.state == "starting" and self._clock.now() - supervised.started_at > most_s:
            what = f"was not ready within {most_s:.0f} s"
        elif (silence_s := self._registry.silence_s(supervised.role.name, supervised.index)) > SILENCE_S:
            what = f"was not heard of for {silence_s:.0f} s"
        else:
            return
        # Concurrently, because a failing node loses all its processes, and ending one may take long.
        name = f"ludus-replace-{supervised.name}"
        supervised.replacing = asyncio.create_task(self._replace(supervised, what, status), name=name)

    def _check_for_start(self, supervised: _SupervisedRole) -> None:
        found = self._registry.find(supervised.role.name, supervised.index)
        if found is None:
            return
        is_back, supervised.registered, supervised.was_ready = supervised.was_ready, found, True
        supervised.set_state("ready")
        self._report()
        if is_back and supervised.policy.on_join is not None:
            # In the background, because a new engine first loads the weights, and others may be lost meanwhile.
            supervised.joining = asyncio.ensure_future(supervised.policy.on_join(found))

    async def _replace(self, supervised: _SupervisedRole, what: str, status: int | None) -> None:
        try:
            await self._lose(supervised, what, status)
        except Exception as error:  # the boundary of a task
            self._fail(error)

    async def _lose(self, supervised: _SupervisedRole, what: str, status: int | None) -> None:
        """Restart a lost process. Raises the error that ends the run if no restarts are left."""
        was_ready, policy = supervised.state == "ready", supervised.policy
        supervised.set_state("lost")
        self._report()
        about = (supervised.name, supervised.attempt, supervised.process.id, what)
        logger.warning("role.lost role=%s attempt=%d process=%s what=%s", *about)
        if supervised.joining is not None:
            supervised.joining.cancel()
            await asyncio.gather(supervised.joining, return_exceptions=True)
        if was_ready and policy.on_lost is not None:
            await policy.on_lost(supervised.role.name, supervised.index)
        await asyncio.to_thread(supervised.process.stop, 0)
        now = self._clock.now()
        recent = [at for at in supervised.restarted_at if now - at < policy.restarts_within_s]
        if not supervised.was_ready or len(recent) >= policy.max_restarts:
            raise self._end_of_run(supervised, what, status, len(recent))
        await self._place(supervised.role, supervised.index, policy, supervised, (*recent, now))

    def _end_of_run(self, supervised: _SupervisedRole, what: str, status: int | None, num_restarts: int) -> LudusError:
        again = ""
        if num_restarts:
            again = f" after {num_restarts} restarts within {supervised.policy.restarts_within_s / 60:.0f} minutes"
        if not supervised.was_ready:
            what += " before it was ready"
        process = supervised.process
        lines = textwrap.indent(process.tail(NUM_LAST_LINES), "  ")
        last = f"; its last lines ({process.log}):\n{lines}" if lines else f"; its log is {process.log}"
        error = UserError if status == _EXIT_USER else BackendError
        return error(f"{supervised.name} ({process.id}) {what}{again}{last}")

    def _report(self) -> None:
        self._on_change(self.views())
