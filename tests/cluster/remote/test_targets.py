"""Names of launch targets, and settings that cannot act there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ludus.cluster.remote import LaunchSettings, target_of
from ludus.compat.art.server_backend import ServerBackend
from ludus.errors import ConfigError, UserError


@pytest.mark.parametrize(
    ("on", "shown"),
    [
        ("local", "ProcessTarget(Here(), 'runs/serve')"),
        ("ssh:ann@gpu-box", "ProcessTarget(Ssh('ann@gpu-box'), 'runs/serve')"),
        ("slurm", "SlurmTarget(Here(), 'runs/serve')"),
        ("slurm:login", "SlurmTarget(Ssh('login'), 'runs/serve')"),
        ("ray", "RayTarget('Ray at http://127.0.0.1:8265', job='none')"),
        ("ray:https://head", "RayTarget('Ray at https://head', job='none')"),
        ("ray:head", "RayTarget('Ray at head', job='none')"),
        ("sky:mine", "SkyTarget('mine', 'runs/serve')"),
    ],
)
def test_every_place_has_a_name(on: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked or started before it is told to."""
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    assert repr(target_of(on, LaunchSettings())) == shown


def test_the_dashboard_that_ray_s_commands_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """By Ray's own variable."""
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://head:8000")
    assert target_of("ray", LaunchSettings()).name == "Ray at http://head:8000"


@pytest.mark.parametrize("on", ["", "ssh", "ssh:", "sky", "local:here", "kubernetes", "gpu-box", "Slurm"])
def test_an_unknown_place_is_told_the_known_ones(on: str) -> None:
    with pytest.raises(UserError, match=f"on='{on}' is no place .* local, ssh:HOST, slurm, .* sky:CLUSTER"):
        target_of(on, LaunchSettings())


@pytest.mark.parametrize(
    ("on", "changes", "message"),
    [
        ("slurm", {"ssh_options": ("-p", "2222")}, r"ssh_options=\('-p', '2222'\) cannot act: on is 'slurm'"),
        ("ssh:box", {"sbatch": ("--time=1",)}, r"sbatch=.* cannot act: on is 'ssh:box'"),
        ("ray", {"sky": {"setup": "x"}}, r"sky=.* cannot act: on is 'ray'"),
        ("ssh:box", {"resources": {"gpus": 1}}, "cannot act on box"),
        ("ssh:-oProxyCommand=x", {}, "names no machine"),
        ("slurm", {"resources": {"gpus": 0.5}}, r"resources\.gpus=0\.5 cannot be had from Slurm"),
        ("ray:https://", {}, "no address of Ray's dashboard"),
    ],
)
def test_what_cannot_act_is_an_error(on: str, changes: dict[str, Any], message: str) -> None:
    """Before anything is started."""
    with pytest.raises(UserError, match=message):
        target_of(on, LaunchSettings(**changes))


def test_options_are_fields_of_the_settings() -> None:
    """An unknown one is told the nearest; both at once are an error."""
    with pytest.raises(ConfigError, match="idle_s"):
        asyncio.run(ServerBackend.launch("local", idle_seconds=3))
    with pytest.raises(UserError, match="pass settings or folder, not both"):
        asyncio.run(ServerBackend.launch("local", LaunchSettings(), folder="x"))
