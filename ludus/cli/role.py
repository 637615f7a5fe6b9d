"""`ludus role`: one process of a run, as launchers start it."""

from __future__ import annotations

import os
from typing import Annotated

from typer import Argument, Option

from ludus.cli.signals import until_signalled
from ludus.cluster.role_client import RoleClient
from ludus.cluster.roles import run_role
from ludus.compat.config import Config


def role(
    name: Annotated[str, Argument(metavar="NAME", help="engine, trainer or rollout.")],
    head: Annotated[str, Option(help="Address of the head's registry.")],
    index: Annotated[int, Option(min=0, help="Which of the role's processes this is.")] = 0,
) -> None:
    """Run one process of a run; runs start these by themselves.

    The key is read from LUDUS_HEAD_KEY, and everything else comes from
    the head.
    """
    run_role(RoleClient.of_environment(head, name, index, os.environ), until_signalled, Config)
