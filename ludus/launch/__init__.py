"""Where the processes of a run are placed: on this machine, by Ray, or in a Slurm job."""

from ludus.launch.base import Launcher, Placed, Resources, Role, role_command
from ludus.launch.board import Board, read_board
from ludus.launch.local import LocalLauncher
from ludus.launch.member import Brief, Member, join
from ludus.launch.registry import Registered, Registry
from ludus.launch.settings import RoleSettings, SchedulerSettings
from ludus.launch.supervise import Supervisor, Watch

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
