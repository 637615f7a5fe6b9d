"""Starts roles as actors of a Ray cluster, each on the resources of a placement group.

Knows: Ray's placement groups, actors, runtime environments.  Knows not: what the processes do.
Rules: an actor runs the command of its role as a child process, so that a role is the same process under every
launcher; its output is copied to the run's folder. The bundles of a role are reserved together, and Ray moves a bundle
whose node is lost to another node; lost processes are restarted by Ludus itself.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ludus.cluster.base import Launcher, Role, RoleProcess
from ludus.cluster.local import LocalProcess
from ludus.errors import UserError
from ludus.processes.cards import VISIBLE, find_cards
from ludus.processes.placement import RaySettings, RoleSettings

INSTALL_HINT = "pip install 'ludus[ray]'"
_CHUNK_BYTES = 1 << 20
_STOP_S = 5.0  # in addition to the grace of the process, for the calls to its node
# Ray declares a node dead after about 25 s of silence.
_NODE_DEATH_S = 60.0
# A free card is assigned at once; an actor that waits this long waits for a card that is in use.
_CARD_S = 20.0
_LOST = -9  # exit status if the actor, and with it the process, was lost


class CardHolder:
    """An actor that reserves a card."""

    def cards(self) -> list[str]:
        """Its cards, as the head names them: Ray may count them in another way."""
        given = ",".join(str(each) for each in importlib.import_module("ray").get_gpu_ids())
        return [card.name for card in find_cards({**os.environ, VISIBLE: given})]


class RoleHost:
    """An actor: the process of one role, on whatever node it was placed."""

    def __init__(self, argv: list[str], env: Mapping[str, str], folder: str) -> None:
        """folder: the head's working directory, also used by the process if it exists on the node."""
        own = Path(tempfile.mkdtemp(prefix="ludus-role-"))
        if Path(folder).is_dir():
            os.chdir(folder)
        # Uses the actor's own Python, which its runtime environment determines.
        self._process = LocalProcess([sys.executable, *argv[1:]], {**os.environ, **env}, own / "log")
        # The log is already open for reading and writing, so its folder can be removed now: nothing is left behind.
        self._printed = self._process.log.open("rb")
        shutil.rmtree(own)

    def where(self) -> tuple[str, str]:
        """A name for the process, and Ray's id of its node."""
        node: str = importlib.import_module("ray").get_runtime_context().get_node_id()
        return f"{self._process.id} on {os.uname().nodename}", node

    def poll(self, offset: int) -> tuple[int | None, bytes]:
        """The exit status (None: it is running), and the output from `offset` on."""
        status = self._process.poll()
        self._printed.seek(offset)
        return status, self._printed.read(_CHUNK_BYTES)

    def stop(self, grace_s: float) -> None:
        self._process.stop(grace_s)


class RayRoleProcess(RoleProcess):
    """The head's side of an actor."""

    def __init__(self, ray: Any, make: Callable[[], Any], log: Path, *, lost_node: str | None = None) -> None:
        """make: makes the actor.  lost_node: the node on which its predecessor was lost. None: there was none.

        An actor made before Ray has noticed the node's death may be scheduled there, and wait for ever; so this waits
        until Ray has.
        """
        super().__init__(log)
        self._ray = ray
        self._make = make
        self._lock = threading.Lock()
        self._lost_node = lost_node
        self._patient_until = time.monotonic() + _NODE_DEATH_S
        self._actor: Any = None
        """None: not made yet."""
        self._offset = 0
        self._status: int | None = None
        self._polling: Any = None
        self._telling: Any = None
        self._where: tuple[str, str] | None = None
        """Its name and its node. None: it waits for a node."""
        self.lost_on: str | None = None
        """The node with which it was probably lost. None: it ended in another way."""

    @property
    def id(self) -> str:
        where = self._where
        return "waiting for a node of the Ray cluster" if where is None else where[0]

    def poll(self) -> int | None:
        with self._lock:
            if self._status is None and self._is_made():
                while self._ray.wait([self._polling], timeout=0)[0] and self._take():
                    pass
            return self._status

    def stop(self, grace_s: float) -> None:
        with self._lock:
            if self._status is None and self._where is not None:
                try:
                    self._ray.get(self._actor.stop.remote(grace_s), timeout=grace_s + _STOP_S)
                    while self._ray.wait([self._polling], timeout=_STOP_S)[0] and self._take():
                        pass
                except self._ray.exceptions.RayError:
                    self.lost_on = self._where[1]  # the actor does not answer, and is killed below
            self._status = _LOST if self._status is None else self._status
            if self._actor is not None:
                self._ray.kill(self._actor)

    def _is_made(self) -> bool:
        """Whether the actor was made; makes it if that is possible now."""
        if self._actor is None:
            is_up = any(each["NodeID"] == self._lost_node and each["Alive"] for each in self._ray.nodes())
            if is_up and time.monotonic() <= self._patient_until:
                return False
            self._actor = self._make()
            self._polling, self._telling = self._actor.poll.remote(0), self._actor.where.remote()
        return True

    def _take(self) -> bool:
        """Process the result of the last poll, and start the next. False: there is no result at the moment."""
        try:
            if self._where is None:
                self._where = self._ray.get(self._telling)
            status, printed = self._ray.get(self._polling)
        except self._ray.exceptions.RayError as error:
            self._status = _LOST
            self.lost_on = None if self._where is None else self._where[1]
            self._append(f"the actor of this process is gone: {error}\n".encode())
            return False
        self._append(printed)
        self._offset += len(printed)
        if status is not None and not printed:
            self._status = status
            return False
        self._polling = self._actor.poll.remote(self._offset)
        return bool(printed) or status is not None

    def _append(self, printed: bytes) -> None:
        with self.log.open("ab") as file:
            file.write(printed)


class RayLauncher(Launcher):
    """Starts roles in a Ray cluster."""

    def __init__(self, folder: Path, settings: RaySettings, *, head_card: str | None = None) -> None:
        """head_card: the card that this process computes on, as in CUDA_VISIBLE_DEVICES. None: it uses none.

        Raises UserError if Ray is not installed, or there is no cluster.
        """
        super().__init__(folder)
        try:
            self._ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError:
            raise UserError(f"scheduler.type=ray needs Ray: {INSTALL_HINT}") from None
        self._settings = settings
        self._lock = threading.Lock()
        self._groups: dict[str, Any] = {}
        self._head_card = head_card
        self._holder: Any = None
        """An actor that only reserves the head's card, because the head is no actor itself. None: it was not made yet,
        or is not needed."""
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            try:
                self._ray.init(address=settings.address, log_to_driver=False, configure_logging=False)
            except ConnectionError as error:
                raise UserError(
                    f"there is no Ray cluster at scheduler.ray.address={settings.address!r}: start one with "
                    f"`ray start --head`, or submit this command with `ray job submit` ({error})"
                ) from None

    def __repr__(self) -> str:
        return f"RayLauncher(address={self._settings.address!r}, roles={sorted(self._groups)})"

    def _begin(self, role: Role, index: int, env: Mapping[str, str], log: Path) -> RayRoleProcess:
        with self._lock:
            if role.settings.gpus and self._holder is None and self._head_card is not None:
                self._holder = self._hold_card(self._head_card)
            group = self._groups.get(role.name) or self._reserve(role)
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        bundle = _bundle(role.settings)
        options = {
            "num_cpus": bundle["CPU"],
            "num_gpus": bundle.get("GPU", 0),
            "memory": bundle.get("memory"),
            "scheduling_strategy": strategies.PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=index
            ),
            "runtime_env": dict(self._settings.runtime_env) or None,
        }
        host = self._ray.remote(RoleHost).options(**options)
        before = self._started.get((role.name, index))
        lost_node = before.lost_on if isinstance(before, RayRoleProcess) else None
        return RayRoleProcess(
            self._ray, lambda: host.remote(role.argv(index), dict(env), str(Path.cwd())), log, lost_node=lost_node
        )

    def close(self) -> None:
        """Closing twice is allowed. After it, no call to Ray may follow, as that would connect to a cluster again."""
        super().close()
        self._started.clear()
        reserved, self._groups = self._groups, {}
        if self._holder is not None:
            self._ray.kill(self._holder)
            self._holder = None
        groups = importlib.import_module("ray.util.placement_group")
        for group in reserved.values():
            groups.remove_placement_group(group)
        if self._is_ours:
            self._is_ours = False
            self._ray.shutdown()

    def _hold_card(self, name: str) -> Any:
        """An actor on this node that reserves the card `name`, so that no role gets it. None: Ray does not assign it.

        Ray chooses the card of an actor, so actors are made one after the other until one has this card.
        """
        node = self._ray.get_runtime_context().get_node_id()
        here = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy(
            node, soft=False
        )
        host = self._ray.remote(CardHolder).options(num_cpus=0, num_gpus=1, scheduling_strategy=here)
        resources: dict[str, float] = next(
            (each["Resources"] for each in self._ray.nodes() if each["NodeID"] == node), {}
        )
        others: list[Any] = []
        found = None
        while found is None and len(others) < int(resources.get("GPU", 0)):
            actor = host.remote()
            try:
                cards = self._ray.get(actor.cards.remote(), timeout=_CARD_S)
            except self._ray.exceptions.RayError:  # the remaining cards are in use
                self._ray.kill(actor)
                break
            found = actor if name in cards else None
            others += [] if found is actor else [actor]
        for actor in others:
            self._ray.kill(actor)
        return found

    def _reserve(self, role: Role) -> Any:
        """The placement group of the role. Raises UserError if the cluster could never hold one of its bundles."""
        bundle = _bundle(role.settings)
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= amount for name, amount in bundle.items()) for node in nodes):
            held = "; ".join(str({name: node.get(name, 0) for name in ("CPU", "GPU", "memory")}) for node in nodes)
            raise UserError(
                f"scheduler.{role.name} asks for {bundle}, which no node of the Ray cluster has: {held}; ask for less"
            )
        groups = importlib.import_module("ray.util.placement_group")
        # Ranks communicate with each other all the time, other roles only with the head.
        strategy = "PACK" if role.name == "trainer" else "SPREAD"
        self._groups[role.name] = groups.placement_group([dict(bundle) for _ in range(role.count)], strategy=strategy)
        return self._groups[role.name]


def _bundle(resources: RoleSettings) -> dict[str, float]:
    """The resources as Ray names them."""
    bundle = {"CPU": resources.num_cpus}
    if resources.gpus:
        bundle["GPU"] = resources.gpus
    if resources.memory_gb is not None:
        bundle["memory"] = float(int(resources.memory_gb * 1e9))
    return bundle
