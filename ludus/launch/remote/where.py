"""Which place is meant by a word such as `ssh:gpu-box`.

Knows: the names of places.  Knows not: how each starts a server.
"""

from __future__ import annotations

from ludus.errors import UserError
from ludus.launch.remote.base import Place
from ludus.launch.remote.process import ProcessPlace
from ludus.launch.remote.settings import LaunchSettings
from ludus.launch.remote.shell import Here, Shell, Ssh

KNOWN = "local, ssh:HOST"


def place_of(on: str, settings: LaunchSettings) -> Place:
    """The place. Raises UserError if there is none of that name, or if a setting cannot act there."""
    kind, _, rest = on.partition(":")
    if kind == "local" and not rest:
        return ProcessPlace(Here(), settings)
    if kind == "ssh":
        return ProcessPlace(_shell(rest, settings), settings)
    raise UserError(f"on={on!r} is no place to launch a server; there are {KNOWN}")


def _shell(destination: str, settings: LaunchSettings) -> Shell:
    return Ssh(destination, settings.ssh_options)
