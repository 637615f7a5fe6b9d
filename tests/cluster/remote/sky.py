"""Stands for the command `sky` where there is no cloud: checks the task file, runs it here, and gives the machine back.

What it was asked is noted in $SKY_NOTES; the rented machine is this one, and ssh knows it by $SKY_SSH_CONFIG.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import yaml

SCHEMAS = json.loads(Path(__file__).with_name("skypilot.json").read_text())


def launch(words: list[str]) -> None:
    Path(os.environ["SKY_SSH_CONFIG"]).write_text(os.environ["SKY_SSH_HOST"])
    task = yaml.safe_load(Path(words[-1]).read_text())
    jsonschema.validate(task, SCHEMAS["task"])
    jsonschema.validate(task["resources"], SCHEMAS["resources"])
    secret = words[words.index("--secret") + 1]
    assert list(task["secrets"]) == [secret] and os.environ[secret]
    subprocess.run(["bash", "-c", task["setup"]], check=True)
    subprocess.Popen(["bash", "-c", task["run"]], stdin=subprocess.DEVNULL, start_new_session=True)


def main(words: list[str]) -> None:
    notes = Path(os.environ["SKY_NOTES"])
    with notes.open("a") as file:
        file.write(" ".join(words) + "\n")
    if words[0] == "launch":
        launch(words)
    else:
        assert words[:2] == ["down", "--yes"]
        Path(os.environ["SKY_SSH_CONFIG"]).unlink()
        for pid in os.environ["SKY_PIDS"].split(os.pathsep):
            if Path(pid).exists():
                subprocess.run(["kill", "-KILL", Path(pid).read_text().split()[0]], check=False)


main(sys.argv[1:])
