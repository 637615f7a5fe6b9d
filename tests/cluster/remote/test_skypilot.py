"""SkyPilot's task file as Ludus writes it, held against SkyPilot's own schemas."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from ludus.cluster.remote import LaunchSettings
from ludus.cluster.remote.skypilot import SkyTarget, task_file
from ludus.errors import BackendError, UserError

SCHEMAS = json.loads(Path(__file__).with_name("skypilot.json").read_text())
GPU: dict[str, Any] = {"resources": {"accelerators": "A100:1", "use_spot": True}, "file_mounts": {"~/data": "./data"}}


def check(**changes: Any) -> dict[str, Any]:
    """The task, which is what the schemas want."""
    task = yaml.safe_load(task_file(LaunchSettings(**changes)))
    jsonschema.validate(task, SCHEMAS["task"])
    jsonschema.validate(task["resources"], SCHEMAS["resources"])
    assert subprocess.run(["bash", "-n"], input=task["run"], text=True, check=False).returncode == 0
    return dict(task)


def test_the_task_file_is_one() -> None:
    """As SkyPilot understands it: one machine, given back when its server has ended, its key a secret."""
    task = check()
    assert task["resources"] == {"autostop": {"idle_minutes": 5, "down": True}}
    assert task["secrets"] == {"LUDUS_API_KEY": None} and task["num_nodes"] == 1
    assert task["run"].endswith("exec ludus serve --folder=runs/serve --host 127.0.0.1 --port 0 --idle-s 1800 --json\n")


def test_parts_of_the_user_s_own() -> None:
    """Take the positions of their originals among ours."""
    task = check(
        sky=GPU | {"setup": "uv pip install ludus"},
        resources={"cpus": 8, "memory_gb": 32, "env": {"HF_HOME": "/data/it's"}},
        setup="source /venv/bin/activate",
        overrides=("engine.kv_bytes=8e9",),
        idle_s=600,
    )
    assert task["resources"] == {
        "autostop": {"idle_minutes": 5, "down": True},
        "cpus": "8+",
        "memory": "32+",
        "accelerators": "A100:1",
        "use_spot": True,
    }
    assert task["setup"] == "uv pip install ludus" and task["file_mounts"] == {"~/data": "./data"}
    assert task["run"].index("export HF_HOME=") < task["run"].index("source /venv/bin/activate")
    assert task["run"].endswith("--idle-s 600 --json engine.kv_bytes=8e9\n")
    assert check(sky={"resources": {"autostop": {"idle_minutes": 60}}})["resources"]["autostop"] == {"idle_minutes": 60}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sky": {"run": "echo"}}, "sky has the part 'run', which Ludus writes"),
        ({"sky": {"secrets": {"KEY": "v"}}}, "sky has the part 'secrets'"),
        ({"sky": {"resources": "A100"}}, r"sky\['resources'\] must be a mapping .* not 'A100'"),
        ({"resources": {"gpus": 1}}, r"gpus=1 says not which; write .*accelerators"),
    ],
)
def test_what_cannot_be_written(changes: dict[str, Any], message: str) -> None:
    """Said before anything is rented."""
    with pytest.raises(UserError, match=message):
        task_file(LaunchSettings(**changes))


@pytest.mark.parametrize(("ssh", "asked"), [("exec sh -s", ["launch"]), ("exit 255", ["launch", "down"])])
def test_a_machine_of_somebody_else_stays(ssh: str, asked: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    """A launch that fails gives a machine back that it has rented, and none that could be reached before."""
    for name, script in (("ssh", ssh), ("sky", f'echo "$1" >> {tmp_path}/notes; [ "$1" != launch ]')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    target = SkyTarget("my-dev-box", LaunchSettings(workdir=str(tmp_path), folder="served"))
    with pytest.raises(BackendError, match="`sky launch` failed"):
        target.start()
    assert (tmp_path / "notes").read_text().split() == asked


def test_a_machine_of_somebody_else_is_not_stopped_when_idle() -> None:
    """When it is given back is not ours to say."""
    assert "autostop" not in yaml.safe_load(task_file(LaunchSettings(), is_rented=False))["resources"]


def test_the_schemas_find_what_is_wrong() -> None:
    """They are SkyPilot's, of a version that is known, and not empty."""
    assert SCHEMAS["version"] == "0.14.1"
    with pytest.raises(jsonschema.ValidationError, match="accelerator"):
        jsonschema.validate({"accelerator": "A100:1"}, SCHEMAS["resources"])
