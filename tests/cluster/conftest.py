"""Roles that are real processes, started by the real launcher of this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ludus.cluster.base import Role
from ludus.cluster.local import LocalLauncher
from ludus.cluster.registry import Registry
from ludus.processes.placement import RoleSettings

MEMBER = Path(__file__).with_name("member.py")


@pytest.fixture
def registry():
    with Registry("name: here\n") as registry:
        yield registry


@pytest.fixture
def launcher(tmp_path):
    launcher = LocalLauncher(tmp_path)
    yield launcher
    launcher.close()


@pytest.fixture
def role(registry):
    """A role `name` of processes that run `role_client.py`."""

    def make(name="engine", count=1, **kwargs):
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
        return Role(
            name,
            (sys.executable, str(MEMBER), name, "--head", registry.url),
            RoleSettings(env={"PYTHONPATH": path}, **kwargs),
            count=count,
        )

    return make


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
