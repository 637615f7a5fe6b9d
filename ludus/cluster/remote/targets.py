"""Finds the launch target of a name such as `ssh:gpu-box`.

Knows: the names of launch targets, and the settings of each.  Knows not: how each starts a server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ludus.cluster.remote.base import LaunchTarget
from ludus.cluster.remote.process import ProcessTarget
from ludus.cluster.remote.ray import DASHBOARD_PORT, RayTarget, dashboard
from ludus.cluster.remote.settings import LaunchSettings
from ludus.cluster.remote.shell import Here, Shell, Ssh
from ludus.cluster.remote.skypilot import SkyTarget
from ludus.cluster.remote.slurm import SlurmTarget
from ludus.errors import UserError

KNOWN = "local, ssh:HOST, slurm, slurm:LOGIN-HOST, ray, ray:http://HEAD:8265, ray:SSH-HOST, sky:CLUSTER"


def target_of(on: str, settings: LaunchSettings) -> LaunchTarget:
    """The launch target. Raises UserError for an unknown name, or a setting that the target does not support."""
    kind, _, rest = on.partition(":")
    if kind not in _TARGETS or (kind == "local" and rest) or (kind in ("ssh", "sky") and not rest):
        raise UserError(f"on={on!r} is no place to launch a server; there are {KNOWN}")
    is_over_ssh = bool(rest) and not rest.startswith(("http://", "https://"))
    acts = {"ssh_options": is_over_ssh, "sbatch": kind == "slurm", "sky": kind == "sky"}
    for name, does_act in acts.items():
        if settings.is_set(name) and not does_act:
            raise UserError(f"{name}={getattr(settings, name)!r} cannot act: on is {on!r}; leave it out")
    return _TARGETS[kind](rest, settings)


def _shell(rest: str, settings: LaunchSettings) -> Shell:
    """The shell of a machine reached by ssh; of this machine if none is named."""
    return Ssh(rest, settings.ssh_options) if rest else Here()


def _ray(rest: str, settings: LaunchSettings) -> LaunchTarget:
    if not rest or rest.startswith(("http://", "https://")):
        return RayTarget(Here(), rest or dashboard(), settings)
    return RayTarget(Ssh(rest, settings.ssh_options), f"http://127.0.0.1:{DASHBOARD_PORT}", settings)


_TARGETS: Mapping[str, Callable[[str, LaunchSettings], LaunchTarget]] = {
    "local": lambda _, settings: ProcessTarget(Here(), settings),
    "ssh": lambda rest, settings: ProcessTarget(_shell(rest, settings), settings),
    "slurm": lambda rest, settings: SlurmTarget(_shell(rest, settings), settings),
    "ray": _ray,
    "sky": SkyTarget,
}
