"""Where the processes of a run are placed: on this machine, by Ray, or in a Slurm job."""

from ludus.cluster.base import Launcher, Placed, Resources, Role, role_command
from ludus.cluster.board import Board, read_board
from ludus.cluster.local import LocalLauncher
from ludus.cluster.member import Brief, Member, join
from ludus.cluster.registry import Registered, Registry
from ludus.cluster.supervise import Supervisor, Watch
from ludus.processes.placement import RoleSettings, SchedulerSettings

__all__ = [
    "Board",
    "Brief",
    "Launcher",
    "LocalLauncher",
    "Member",
    "Placed",
    "Registered",
    "Registry",
    "Resources",
    "Role",
    "RoleSettings",
    "SchedulerSettings",
    "Supervisor",
    "Watch",
    "join",
    "read_board",
    "role_command",
]
