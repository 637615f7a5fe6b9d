"""Starts roles as processes of this machine.

Knows: processes, their groups, log files, cards by name.  Knows not: what the processes do.
Invariant: when the head is killed, its processes get SIGTERM at once on Linux; elsewhere they end when the head no
longer answers their heartbeats.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ludus.cluster.base import Launcher, Role, RoleProcess
from ludus.errors import UserError
from ludus.processes.cards import VISIBLE, find_cards
from ludus.processes.end_with_parent import end_with_parent
from ludus.processes.ended import exit_code, kill_group

# How often to check whether a group that was asked to end has ended.
_POLL_S = 0.05
# A killed process ends within milliseconds, and is then reaped by the machine's init process; in some containers that
# never happens, so do not wait longer for it.
_KILLED_S = 0.002
_REAP_S = 1.0


class LocalProcess(RoleProcess):
    """A process that leads its own group and session."""

    def __init__(self, argv: list[str], env: Mapping[str, str], log: Path) -> None:
        super().__init__(log)
        self._lock = threading.Lock()
        """Held while the group is signalled or reaped, so that a signal never reaches another process of that pid."""
        with log.open("ab") as file:
            self._popen = subprocess.Popen(
                end_with_parent(tuple(argv)),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.pid = self._popen.pid

    @property
    def id(self) -> str:
        return f"pid {self.pid}"

    def poll(self) -> int | None:
        with self._lock:
            if self._popen.returncode is None and exit_code(self._popen) is not None:
                self._end_group()
            return self._popen.returncode

    def stop(self, grace_s: float) -> None:
        with self._lock:
            if self._popen.returncode is None and exit_code(self._popen) is None:
                os.kill(self._popen.pid, signal.SIGTERM)
        give_up_at = time.monotonic() + grace_s
        while self.poll() is None and time.monotonic() < give_up_at:
            time.sleep(_POLL_S)
        with self._lock:
            if self._popen.returncode is None:
                self._end_group()

    def _end_group(self) -> None:
        """Kill the rest of the group, such as a server that the process left behind, and wait for its end."""
        pid = self._popen.pid
        kill_group(pid)
        self._popen.wait()
        give_up_at = time.monotonic() + _REAP_S
        with suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < give_up_at:
                os.killpg(pid, 0)
                time.sleep(_KILLED_S)


class LocalLauncher(Launcher):
    """Starts processes on this machine."""

    def __init__(self, folder: Path, *, head_card: str | None = None) -> None:
        """head_card: the card that this process computes on, as in CUDA_VISIBLE_DEVICES. None: it uses none."""
        super().__init__(folder)
        self._lock = threading.Lock()
        """Held while devices are assigned."""
        self._head_card = head_card
        self._devices = [card.name for card in find_cards()]
        self._held: dict[tuple[str, int], list[str]] = {}

    def _begin(self, role: Role, index: int, env: Mapping[str, str], log: Path) -> LocalProcess:
        with self._lock:
            devices = self._device_env(role, index)
        return LocalProcess(role.argv(index), {**os.environ, **devices, **env}, log)

    def _device_env(self, role: Role, index: int) -> dict[str, str]:
        """Variables that select the process's devices, which are the same if it is restarted."""
        wanted = role.settings.gpus
        if role.is_on_heads_card:
            return {} if self._head_card is None else {VISIBLE: self._head_card}
        # from the last one down, because by default the head uses the first
        others = [device for device in reversed(self._devices) if device != self._head_card]
        held = {device for devices in self._held.values() for device in devices}
        free = [device for device in others if device not in held]
        if not wanted:
            return self._shared(role, index, free if len(free) >= role.cards else others)
        num = int(wanted)
        if num != wanted:
            raise UserError(
                f"scheduler.{role.name}.gpus={wanted} must be a whole number with scheduler.type=local; "
                "with 0 the process sees every device"
            )
        if (role.name, index) not in self._held:
            if len(free) < num:
                mine = "" if self._head_card is None else f", one of which, {self._head_card}, is the head's own,"
                raise UserError(
                    f"scheduler.{role.name}.gpus={num}: {role.name}-{index} finds {len(free)} of this machine's "
                    f"{len(self._devices)}{mine} free; ask for fewer, or for 0 to share them"
                )
            self._held[role.name, index] = free[:num]
        return {VISIBLE: ",".join(self._held[role.name, index])}

    def _shared(self, role: Role, index: int, others: list[str]) -> dict[str, str]:
        """Variables that select cards for a process without a reservation: in turn, so that not all use the first
        one."""
        if not role.cards or len(others) < role.cards:
            return {}
        chosen = [others[(index * role.cards + number) % len(others)] for number in range(role.cards)]
        return {VISIBLE: ",".join(chosen)}
